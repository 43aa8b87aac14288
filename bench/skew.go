package main

import (
	"math"
	"math/rand/v2"
	"sort"
	"sync"
)

// skew chooses rows: all alike, or by Zipf's law, by which the k-th row comes
// 1/k^theta as often as the first. It works for every theta, also below 1, by a
// table of cumulated weights; 0 is no skew.
type skew struct {
	theta float64
	mu    sync.RWMutex
	upTo  map[int][]float64
}

func newSkew(theta float64) *skew { return &skew{theta: theta, upTo: map[int][]float64{}} }

func (s *skew) pick(r *rand.Rand, n int) int {
	if s == nil || s.theta == 0 {
		return r.IntN(n)
	}
	table := s.table(n)
	return min(sort.SearchFloat64s(table, r.Float64()*table[n-1]), n-1)
}

func (s *skew) table(n int) []float64 {
	s.mu.RLock()
	table := s.upTo[n]
	s.mu.RUnlock()
	if table != nil {
		return table
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if table = s.upTo[n]; table == nil {
		table = make([]float64, n)
		sum := 0.0
		for k := range table {
			sum += math.Pow(float64(k+1), -s.theta)
			table[k] = sum
		}
		s.upTo[n] = table
	}
	return table
}
