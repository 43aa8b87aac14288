// Package export sends what transactions have done to another system: a transactional outbox. An item is put into the outbox by the
// transaction that it tells of, so it is sent if that has committed, and only then.
//
//	outbox, err := export.New(db, "outbox")
//
//	err = db.Update(ctx, func(tx *percolator.Txn) error {
//		... // place the order
//		return outbox.Put(ctx, tx, customer, payload)
//	})
//
// An observer, run by any number of workers, gives the items of a key to a [Sink]:
//
//	observer, err := outbox.Observer("send orders", sink, export.Options{})
//	err = worker.Observe(observer)
//
// # What a sink sees
//
//   - The items of one key come in the order of their commits, and those of one transaction in the order of Put. Items of different keys come in any
//     order. An item is named by its commit timestamp and its index in the transaction; these rise, with gaps.
//   - Nothing is lost: an item stays in the outbox until the sink has taken it.
//   - An item may come again: the sink took it, and the exporter died or lost its connection before it noted that. Items that come
//     again come in order, too, under a higher epoch.
//
// Whoever sends the items of a key claims the key first, by a cell with a rising epoch. This is no lock: an exporter that was suspended while it sent
// may go on after its claim has ended and its successor is at work. So items that were taken and noted may come once more, late and out of order. They
// have a lower epoch than what came before. A sink that remembers the greatest epoch of each key, and the last item, and refuses lower
// ones ([ErrSuperseded]) takes every item exactly once and in order. Any other sink sees late duplicates.
//
// # Where the data lie, and what it costs
//
// The table belongs to the outbox alone. An item is a row of its own, named by its key, by the start timestamp of its transaction and by its
// index. So transactions that put items do not conflict, whatever the key. Put also notifies the key (percolator.Txn.Notify), so the observer
// must be registered before the first Put: run a worker with it once. Otherwise the transaction ends with
// percolator.ErrNotObserved, since nobody would send its items. If the observer is removed while items wait, and registered anew after a collection
// (under another name, say), they wait for the next Put of their key: put one more item for each such key.
//
// A run of the observer reads the items and claims the key in one transaction; if there are no items, it claims nothing. A snapshot has everything that was committed
// at or below it, so no item with a lower commit timestamp can come later, and the order is final. Rows lie in the order of start timestamps, not of commits. Of some rows, read from
// the first one on, those items can be sent whose commit lies at or below the start of the last one: every row after it was committed later. So a run
// needs no more memory than a page, however long the outbox is. After each batch a transaction removes what was taken, if the claim is still the
// exporter's; two exporters conflict on the claim. For a batch that is one call of the sink and one transaction. The transaction of the last batch removes the claim.
// A run ends before its own transaction is too old to be acknowledged (MaxTxnAge); another one, under a new claim, goes on at once.
//
// Rows that were removed cost a scan until they are collected. Give the table a short history (percolator.DB.ConfigureTable): its MaxTxnAge then bounds
// the transactions that put items.
//
// # When a sink fails
//
// A call that fails with several items says nothing about any of them: many a sink takes all or none. What it took is noted, and the first item that it did not take is sent alone at once, by whoever has the key. If it is taken,
// the next calls have two items, four, and so on. If it fails alone, that is an attempt of the item.
//
// A run whose sink fails so is repeated with the worker's backoff, and parked after its attempts. The item blocks its key until the run is
// released (percolator.DB.Release), or until a further item of the key sets off another run. With [Options.Skip] the item is set aside instead, as a dead letter, and the next
// ones are sent ([Outbox.Dead] lists them). Its attempts are 0.2 s apart, then twice as long each time, 5 minutes at most, and the key waits meanwhile, also if more of its items come. Other keys go on in any case. A sink that says when it can take the items ([Later], Retry-After) is called then, and nothing counts as failed.
// [Outbox.Paused] lists the keys that wait for that, or for the next attempt of an item that may be set aside, and [Outbox.Resume] ends such a pause before its time.
//
// Times are those of the oracle. If it stands still, claims do not end, and the keys of an exporter that died wait.
package export
