package rowstore

import (
	"fmt"
	"slices"
	"sync"
)

// part is what goes to one place: asks, and where their answers belong.
type part[K comparable, Q any] struct {
	to    K
	asks  []Q
	index []int
}

// cut sorts asks by the place that each goes to, in the order in which the places
// occur.
func cut[K comparable, Q any](asks []Q, place func(*Q) K) []part[K, Q] {
	var parts []part[K, Q]
	for i := range asks {
		to := place(&asks[i])
		p := slices.IndexFunc(parts, func(p part[K, Q]) bool { return p.to == to })
		if p < 0 {
			p = len(parts)
			parts = append(parts, part[K, Q]{to: to})
		}
		parts[p].asks = append(parts[p].asks, asks[i])
		parts[p].index = append(parts[p].index, i)
	}
	return parts
}

// sendParts sends all parts at once and puts their answers, n in all, together. The
// failure of a part is that of its asks alone.
func sendParts[K comparable, Q, A any](n int, parts []part[K, Q], send func(*part[K, Q]) ([]A, error), failed func(*Q, error) A) []A {
	answers := make([]A, n)
	one := func(p *part[K, Q]) {
		got, err := send(p)
		if err == nil && len(got) != len(p.asks) {
			err = fmt.Errorf("%w: %d answers for %d rows", ErrAmbiguous, len(got), len(p.asks))
		}
		for i, at := range p.index {
			if err != nil {
				answers[at] = failed(&p.asks[i], err)
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
