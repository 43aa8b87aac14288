package explore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// Programs over stores that draw a group's timestamp before its writes become visible.

// drawns are programs of commits in one phase there, beside everything that may come between the two steps.
func drawns() []program {
	observed := []percolator.Cell{a}
	both := []percolator.Cell{a, b}
	mixed := [][]percolator.Option{onePhase, plain2PC}
	all := []program{
		{Program{Name: "write-write", Clients: clients{writer(a, b), writer(b, a)}, Budget: Budget{Die: 1, Lose: 1, Late: 1}}, whole},
		{Program{Name: "transfers", Setup: prepared, Clients: clients{transferOf(a, b), transferOf(a, b)}, Budget: Budget{Die: 1, Lose: 1}}, whole},
		{Program{Name: "transfer and full read", Setup: prepared, Clients: clients{transferOf(a, b), reader(b, a)}, Budget: Budget{Late: 1}}, whole},
		{Program{Name: "transfer and scan", Setup: prepared, Clients: clients{transferOf(a, b), scanner}, Budget: Budget{Late: 1}}, whole},
		{Program{Name: "two transfers and a scan", Setup: prepared, Clients: clients{transferOf(a, b), retrier(b, a), scanner}, Budget: Budget{Leave: 1}}, bounded},
		{Program{Name: "transfers and readers, one after the other", Setup: prepared, Clients: clients{retrier(a, b), transferOf(b, a), reader(a, b), reader(b, a)}, Budget: Budget{Lose: 1}}, bounded},
		{Program{Name: "against two-phase, crash", Setup: prepared, Clients: clients{transferOf(a, b), transferOf(b, a)}, Each: mixed, Budget: die}, whole},
		{Program{Name: "against two-phase, lost reply", Setup: prepared, Clients: clients{transferOf(a, b), transferOf(b, a)}, Each: mixed, Budget: lose}, whole},
		{Program{Name: "against two-phase and a reader", Setup: prepared, Clients: clients{transferOf(a, b), transferOf(b, a), reader(a, b)}, Each: mixed, Budget: Budget{Leave: 1, Expire: 1}}, bounded},
		{Program{Name: "GetForUpdate on one side", Setup: prepared, Clients: clients{skew(a, forUpdate), writer(b)}, Each: mixed, Budget: Budget{Die: 1, Lose: 1}}, whole},
		{Program{Name: "GetForUpdate against skew", Setup: prepared, Clients: clients{skew(a, forUpdate), skew(b, forUpdate)}, Each: mixed, Budget: late}, whole},
		{Program{Name: "serializable cells", Setup: prepared, Clients: clients{skew(a, serializable, serializably), skew(b, serializable, serializably)}, Budget: Budget{Lose: 1, Die: 1}}, whole},
		{Program{Name: "serializable cells, against two-phase", Setup: prepared, Clients: clients{skew(a, serializable, serializably), skew(b, serializable, serializably)}, Each: mixed, Budget: late}, whole},
		{Program{Name: "serializable scans", Setup: prepared, Clients: clients{skew(a, serializableScan, serializably), skew(b, serializableScan, serializably)}, Budget: late}, bounded},
		{Program{Name: "collection and slow reader", Setup: collected, Collects: true, Settings: brief, Clients: clients{collector, oldReader, writer(a)}, Budget: Budget{Slow: 1, Late: 1}}, bounded},
		{Program{Name: "collection and slow writer", Setup: collected, Collects: true, Settings: brief, Stall: stall, Clients: clients{collector, transferOf(a, b, gone)}, Budget: Budget{Expire: 1, Slow: 1, Late: 1}}, bounded},
		{Program{Name: "two collections, writer and reader", Setup: collected, Collects: true, Settings: brief, Stall: stall, Clients: clients{collector, overwriteAndCollect, writer(b, a, gone), oldReader}, Budget: Budget{Leave: 1, Expire: 1, Slow: 2}}, bounded},
		{Program{Name: "collection and a delete that nobody saw", Setup: deleted, Collects: true, Settings: brief, Clients: clients{collector, glancer, writer(a)}, Observed: observed, Budget: Budget{Late: 1, Slow: 1}}, bounded},
		{Program{Name: "change, crash", Setup: registered, Clients: clients{writer(a), glancer}, Observed: observed, Budget: Budget{Die: 1, Leave: 1}}, bounded},
		{Program{Name: "change, given up under way", Setup: registered, Clients: clients{writer(a), glancer}, Observed: observed, Budget: late}, whole},
		{Program{Name: "second change", Setup: changed(a), Clients: clients{writer(a), glancer}, Observed: observed, Budget: late}, bounded},
		{Program{Name: "second change that takes its time", Setup: changed(a), Clients: clients{writer(a), glancer}, Observed: observed, Budget: Budget{Stall: 1, Slow: 1}}, bounded},
		{Program{Name: "two workers", Setup: changed(a, b), Clients: clients{worker, worker}, Observed: both, Budget: Budget{Leave: 1}}, random},
		{Program{Name: "weak notification", Setup: registered, Clients: clients{hint(a, aside), glancer}, Observed: observed, Weak: true, Budget: late}, whole},
		{Program{Name: "run with an output elsewhere", Setup: changed(a), Clients: clients{chained, writer(a)}, Observed: observed, Budget: Budget{Leave: 1, Expire: 1}}, bounded},
		{Program{Name: "registration and an old catalog", Settings: brief, Setup: prepared, Clients: clients{writer(a), registrar}, Observed: both, Budget: Budget{Late: 1, Slow: 2}}, bounded},
		{Program{Name: "registration and an old catalog, stalls", Settings: brief, Setup: prepared, Clients: clients{writer(a), registrar}, Observed: both, Budget: Budget{Stall: 1, Leave: 1, Slow: 1}}, bounded},
		{Program{Name: "old value, collection and a run", Settings: brief, Setup: seenLongAgo, Collects: true, OldValues: true, Clients: clients{collector, glancer, writer(a)}, Observed: observed, Budget: Budget{Late: 1, Slow: 1}}, bounded},
	}
	all = append(all,
		program{Program{Name: "deleted row, unseen column", Settings: brief, Setup: known, Clients: clients{dropper(), writer(aside)}, Budget: Budget{Die: 1, Lose: 1, Late: 1}}, bounded},
		program{Program{Name: "deleted row and another one, unseen column and a reader", Settings: brief, Setup: known, Clients: clients{dropper(b), writer(aside, b), reader(a, aside, b)}, Budget: late}, bounded})
	for i := range all {
		all[i].Name, all[i].Drawn = "drawn first, "+all[i].Name, true
	}
	return all
}

// Readers that do not wait for a group between its two steps miss it, though their snapshots are later.
func TestReadersThatWaitForNobodyAreFound(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(cells ...percolator.Cell) Program{
		"read": func(cells ...percolator.Cell) Program {
			return Program{Clients: clients{writer(a, b), reader(cells...)}}
		},
		"scan": func(...percolator.Cell) Program { return Program{Clients: clients{writer(a, b), scanner}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := read(a, b)
			p.Name, p.Setup, p.Drawn, p.careless = name, prepared, true, true
			report, v := All(t, p, 0, Seen{})
			require.NotNil(t, v, report.String())
			require.ErrorContains(t, v, "the newest version is")
			p.careless = false
			report, v = All(t, p, 0, Seen{})
			require.Nil(t, v)
			require.True(t, report.Complete)
			require.Positive(t, report.Committed)
		})
	}
}
