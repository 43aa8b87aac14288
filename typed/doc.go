// Package typed puts Go values into cells in place of bytes.
//
// A Column is a column of a table with a Codec that turns its values into bytes and back. It reads, writes and
// scans them, and makes observers that get them:
//
//	var balance = typed.Column[int]{Table: "account", Name: "balance", Codec: typed.Number[int]{}}
//
//	have, err := balance.Get(ctx, tx, "ann")
//	err = balance.Set(ctx, tx, "ann", have+10)
//
// A Table stores the fields of a struct in columns of their own, so that transactions that change different
// fields do not conflict.
//
// There are codecs for texts, bytes, numbers, JSON and protocol buffers. Versions lets the encoding of a column change while
// old and new programs run. Encrypted encrypts values by keys of yours; whoever destroys the key of a customer has
// erased the customer's values, also in backups.
//
// Columns, tables and codecs are values without state. They may be used concurrently if the codecs that you wrote may.
package typed
