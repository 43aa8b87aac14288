package percolator

import (
	"context"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// mostDamaged is how many slots a look leaves out. Each costs some 17 scans.
const mostDamaged = 16

// detour goes on with a walk whose scan has failed. A row that cannot be read, because it is
// damaged or a newer program wrote it, must not hide the rows behind it. A scan does not say which row it
// is, so its slot is searched for by halves, and left out. Any other failure is the walk's, and so is
// this one where very much cannot be read.
func (l *looker) detour(ctx context.Context, rows rowstore.ScanRange, failed error) error {
	if len(rows.Slots) == 0 || l.damaged == mostDamaged || !l.w.db.isOfARow(ctx, failed) {
		return failed
	}
	first, second := halves(rows.Slots)
	if len(second) == 0 {
		l.damaged++
		if !l.fresh {
			l.w.mu.Lock()
			delete(l.w.looking, l.table) // this part of the look has ended, too
			l.w.mu.Unlock()
		}
		l.w.db.log.Error("notifications cannot be read, so no observer runs for the rows of their slot from the damaged one on", "table", l.table, "slot", first[0].First, "err", failed)
		return nil
	}
	rows.Slots = first
	err := l.walk(ctx, rows)
	if err == nil {
		rows.From, rows.Slots = "", second
		err = l.walk(ctx, rows)
	}
	return err
}

// halves cuts ranges of slots into two parts of about as many slots. The second part of one slot
// is empty.
func halves(all []rowstore.SlotRange) (first, second []rowstore.SlotRange) {
	n := 0
	for _, r := range all {
		n += int(r.Last-r.First) + 1
	}
	for n /= 2; n > 0; all = all[1:] {
		r := all[0]
		have := int(r.Last-r.First) + 1
		if have > n {
			middle := r.First + uint16(n) //nolint:gosec // less than the number of slots
			first = append(first, rowstore.SlotRange{First: r.First, Last: middle - 1})
			return first, append([]rowstore.SlotRange{{First: middle, Last: r.Last}}, all[1:]...)
		}
		first, n = append(first, r), n-have
	}
	if len(first) == 0 {
		return all, nil
	}
	return first, all
}
