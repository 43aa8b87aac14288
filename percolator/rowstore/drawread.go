package rowstore

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// At returns the reads with the timestamp in the place of Drawn.
func (d *DrawRead) At(ts Timestamp) []RowRead {
	n := 0
	for i := range d.Reads {
		n += len(d.Reads[i].Picks)
	}
	picks := make([]Pick, 0, n)
	reads := make([]RowRead, len(d.Reads))
	for i, r := range d.Reads {
		from := len(picks)
		for _, p := range r.Picks {
			if p.To == Drawn {
				p.To = ts
			}
			picks = append(picks, p)
		}
		r.Picks = picks[from:len(picks):len(picks)]
		reads[i] = r
	}
	return reads
}

// DrawThenRead does what a DrawReader does in two calls: it draws a timestamp for
// every ask, then reads. A DrawReader answers by it what it cannot do in one.
func DrawThenRead(ctx context.Context, o oracle.Oracle, s Store, asks []DrawRead) ([]DrawnRows, error) {
	if err := CheckDrawReads(asks); err != nil {
		return nil, err
	}
	if len(asks) == 0 {
		return nil, ctx.Err()
	}
	first, err := o.Draw(ctx, len(asks))
	if err != nil {
		return nil, fmt.Errorf("drawing %d timestamps: %w", len(asks), err)
	}
	var reads []RowRead
	answers := make([]DrawnRows, len(asks))
	for i := range asks {
		answers[i].TS, answers[i].Apart = first+Timestamp(i), true
		reads = append(reads, asks[i].At(answers[i].TS)...)
	}
	rows, err := s.Read(ctx, reads)
	if err != nil {
		return nil, err
	}
	for i := range asks {
		n := len(asks[i].Reads)
		answers[i].Rows, rows = rows[:n:n], rows[n:]
	}
	return answers, nil
}
