// Package keys makes the keys of rows out of tuples, so that rows are in the order of the tuples: of customers, then times, say.
//
//	row := string(keys.Key("").Text("ann").Time(placed).Int(17))
//	customer := keys.Read(row)
//	name, placed, number := customer.Text(), customer.Time(), customer.Int()
//	err := customer.End()
//
// All rows that begin with the same elements lie together: Key.Range names them for Txn.Scan. Keys of
// texts and numbers that are joined by hand go wrong where a text holds the separator, and where numbers
// differ in length.
//
// Spread puts a bucket before the key, for keys that grow with time.
//
// The encoding is part of what is stored, and does not change. It is that of FoundationDB's tuples for bytes, texts and
// integers. Everything in this package may be used concurrently, but for a Reader. Nothing panics, whatever the bytes.
package keys
