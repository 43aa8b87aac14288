package tikvraw

import (
	"time"

	"github.com/tikv/client-go/v2/tikv"
)

// Through returns the options for a store that reaches the TiKV servers by a client of a
// test's, which the store closes.
func (o Options) Through(rpc tikv.Client) Options {
	o.rpc = rpc
	return o.counted()
}

// counted keeps looks at the format away from tests that count requests. These have no
// sweeps either.
func (o Options) counted() Options {
	if o.SweepEvery < 0 && o.formatEvery == 0 {
		o.formatEvery = time.Hour
	}
	return o
}
