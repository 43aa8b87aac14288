// Package tikvraw keeps a row-transactional store in TiKV's raw key-value mode: the
// backend for data that outgrows one machine.
//
// Importing it registers the URL scheme tikv; see [ParseURL] for the grammar. [OpenURL]
// and [Open] make connections of their own. [New] takes a client of PD that the program
// has, such as the one of a txnkv.Client.
//
// A row is one key, its head, which only CompareAndSwap changes. What a head has no
// room for lies in keys of its own, which are written before the swap that points to
// them and removed after the swap that drops them. So a process that dies between
// two calls leaves garbage, never a wrong answer; [Store.Sweep] finds it. The README
// says what each call becomes, what the cluster needs, and what is not offered.
package tikvraw
