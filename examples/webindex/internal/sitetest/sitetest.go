// Package sitetest makes random web sites for tests, and changes them.
package sitetest

import (
	"context"
	"fmt"
	"html"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/examples/webindex/internal/source"
)

// Site is a set of pages that changes; it is a source.Source.
type Site struct {
	Name  string
	Pages map[string]string // URL -> body
	rand  *rand.Rand
	next  int
}

// New makes a site of n random pages.
func New(name string, seed uint64, n int) *Site {
	s := &Site{Name: name, Pages: make(map[string]string), rand: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // test data
	s.Add(n)
	return s
}

// ID implements source.Source.
func (s *Site) ID() string { return "test:" + s.Name }

// Complete implements source.Source.
func (s *Site) Complete() bool { return true }

// Prepare implements source.Source.
func (s *Site) Prepare(context.Context) (source.Summary, error) {
	return source.Summary{Pages: len(s.Pages)}, nil
}

// Items implements source.Source.
func (s *Site) Items(context.Context) iter.Seq2[source.Item, error] {
	return func(yield func(source.Item, error) bool) {
		for _, u := range slices.Sorted(maps.Keys(s.Pages)) {
			p := source.Page{URL: u, Body: []byte(s.Pages[u])}
			if !yield(source.Item{URL: u, Read: func(context.Context) (source.Page, error) { return p, nil }}, nil) {
				return
			}
		}
	}
}

func (s *Site) urls() []string { return slices.Sorted(maps.Keys(s.Pages)) }

func (s *Site) some(share float64) []string {
	all := s.urls()
	s.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:int(float64(len(all))*share)]
}

func (s *Site) word() string {
	// Few words are common and many are rare.
	return fmt.Sprintf("word%d", int(s.rand.ExpFloat64()*20))
}

func (s *Site) words(n int) string {
	w := make([]string, n)
	for i := range w {
		w[i] = s.word()
	}
	return strings.Join(w, " ")
}

func (s *Site) body() string {
	var b strings.Builder
	fmt.Fprintf(&b, "<!doctype html><title>%s</title><h1>%s</h1>\n", s.words(3), html.EscapeString(s.words(2)+" & <more>"))
	// Some links lead to pages that do not exist, yet or any more.
	for range s.rand.IntN(12) {
		fmt.Fprintf(&b, "<p>%s <a href=\"p%d.html#x\">%s</a>\n", s.words(5), s.rand.IntN(s.next+5), s.words(1+s.rand.IntN(3)))
	}
	fmt.Fprintf(&b, "<p>%s", s.words(s.rand.IntN(60)))
	return b.String()
}

// Add adds n new pages.
func (s *Site) Add(n int) {
	for range n {
		s.next++
		s.Pages[fmt.Sprintf("http://%s.example/p%d.html", s.Name, s.next)] = s.body()
	}
}

// Change gives a share of the pages a new content.
func (s *Site) Change(share float64) {
	for _, u := range s.some(share) {
		s.Pages[u] = s.body()
	}
}

// Remove removes a share of the pages.
func (s *Site) Remove(share float64) {
	for _, u := range s.some(share) {
		delete(s.Pages, u)
	}
}

// Copy makes a share of the pages duplicates of others.
func (s *Site) Copy(share float64) {
	all := s.urls()
	for _, u := range s.some(share) {
		s.Pages[u] = s.Pages[all[s.rand.IntN(len(all))]]
	}
}
