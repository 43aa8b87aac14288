package tikvraw

import "github.com/tikv/client-go/v2/tikv"

// Through returns the options for a store that reaches the TiKV servers by a client of a
// test's, which the store closes.
func (o Options) Through(rpc tikv.Client) Options {
	o.rpc = rpc
	return o
}
