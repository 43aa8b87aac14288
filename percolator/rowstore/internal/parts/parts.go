// Package parts cuts a call into parts for several places and puts their answers together.
package parts

import (
	"fmt"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Part holds the asks that go to one place, and the indexes of their answers.
type Part[K comparable, Q any] struct {
	To    K
	Asks  []Q
	Index []int
}

// Cut sorts asks by the place to which each goes. The parts are in the order in which their
// places first occur.
func Cut[K comparable, Q any](asks []Q, place func(*Q) K) []Part[K, Q] {
	var parts []Part[K, Q]
	for i := range asks {
		to := place(&asks[i])
		p := slices.IndexFunc(parts, func(p Part[K, Q]) bool { return p.To == to })
		if p < 0 {
			p = len(parts)
			parts = append(parts, Part[K, Q]{To: to})
		}
		parts[p].Asks = append(parts[p].Asks, asks[i])
		parts[p].Index = append(parts[p].Index, i)
	}
	return parts
}

// SendParts sends all parts at once and puts their n answers together. If a part fails, only
// its own asks get the error.
func SendParts[K comparable, Q, A any](n int, parts []Part[K, Q], send func(*Part[K, Q]) ([]A, error), failed func(*Q, error) A) []A {
	answers := make([]A, n)
	one := func(p *Part[K, Q]) {
		got, err := send(p)
		if err == nil && len(got) != len(p.Asks) {
			err = fmt.Errorf("%w: %d answers for %d rows", rowstore.ErrAmbiguous, len(got), len(p.Asks))
		}
		for i, at := range p.Index {
			if err != nil {
				answers[at] = failed(&p.Asks[i], err)
			} else {
				answers[at] = got[i]
			}
		}
	}
	var others sync.WaitGroup
	for i := range parts[1:] {
		others.Go(func() { one(&parts[1+i]) })
	}
	one(&parts[0])
	others.Wait()
	return answers
}
