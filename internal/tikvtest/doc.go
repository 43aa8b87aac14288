// Package tikvtest is a TiKV cluster inside a test: client-go's own mock of
// stores, regions and PD (testutils.NewMockTiKV), with what that does not do as a
// server does put right.
//
//	c := tikvtest.New(t, tikvtest.Options{})           // three stores, one region
//	kv, pd := c.NewClient(t)                           // in this process, no network
//	store, err := rowstore.Open(ctx, c.URL()+"?prefix=shop") // over gRPC, as a program would
//
// # What the mock does, and what stands in front of it
//
// Client-go's mock knows stores, regions, peers, leaders and epochs, and refuses
// a request that comes to the wrong one, with the region error that a server
// gives. Its keys are in one ordered store below all of that. Of the raw commands
// it gets these wrong, and [Cluster] answers them itself, on the mock's keys and
// with the mock's checks of store, region and epoch before:
//
//   - RawCompareAndSwap fails on an absent key ("leveldb: not found"), takes no
//     notice of PreviousNotExist, and so cannot tell an absent key from an empty one.
//   - RawBatchGet answers an absent key with an empty value; a server leaves it out.
//   - RawBatchDelete deletes also when it answers a region error.
//   - RawScan returns values where only keys were asked for. In API version 2 it
//     compares raw keys with the encoded boundaries of a region.
//   - A key outside of the region is served; a server answers KeyNotInRegion.
//   - The version of the API in a request, and the length of a key, are not looked at.
//   - Entries too large for the Raft log are recognised by the size of a request
//     whatever it does; a server refuses writes alone.
//
// TTLs are not kept, and RawDeleteRange, RawGetKeyTTL, RawCoprocessor and
// RawChecksum are left as the mock has them: nothing in this repository uses them.
//
// # Faults
//
// A [Layer] stands between one client and the cluster: [Counter] counts requests,
// [Latency] delays them, [Faults] loses requests or replies and invents region
// errors. The cluster itself splits and merges regions, moves leaders
// ([Cluster.Churn] does so while a suite runs), stops stores, and steps the clock
// of PD.
package tikvtest
