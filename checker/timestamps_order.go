package checker

import (
	"fmt"
	"strings"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// precedence says that if both transactions are committed, the first one's commit lies below the other's, which wrote what the first one had
// read and keeps until its commit.
type precedence struct {
	first, then int32
	key         int32
}

func wroteLocked(c *tsChecker, b because) string {
	return fmt.Sprintf("%s, which wrote %s, which it had locked, starts at %d", c.h.name(int(b.txn)), c.d.keys[b.key], uint64(c.h[b.txn].Start))
}

func wroteKept(c *tsChecker, b because) string {
	when := fmt.Sprintf("at %d", uint64(c.h[b.txn].Commit))
	if u := c.bounds[b.txn]; c.h[b.txn].Outcome == Unknown {
		when = fmt.Sprintf("at %d at the latest", uint64(u.upTo))
	}
	return fmt.Sprintf("%s wrote %s, which it had read and nobody may have written until its commit, committed %s", c.h.name(int(b.txn)), c.d.keys[b.key], when)
}

func keptIt(c *tsChecker, b because) string {
	when := fmt.Sprintf("at %d", uint64(c.h[b.txn].Commit))
	if u := c.bounds[b.txn]; c.h[b.txn].Outcome == Unknown {
		when = fmt.Sprintf("above %d", uint64(u.over))
	}
	return fmt.Sprintf("%s did not see it in %s, which nobody may have written until it was committed %s", c.h.name(int(b.txn)), c.d.keys[b.key], when)
}

// order gives the transactions of unknown outcome the bounds that follow from the precedences. What one learns from another may be what it learned
// from a third, so they are followed in their order; a cycle of them has no order at all.
func (c *tsChecker) order() {
	before := map[int32]int{} // how many come before it, of unknown outcome
	after := map[int32][]precedence{}
	for _, p := range c.precedences {
		first, then := &c.h[p.first], &c.h[p.then]
		switch {
		case first.Outcome != Unknown:
			c.bounds[p.then].above(first.Commit, p.first, p.key, keptIt)
		case then.Outcome != Unknown:
			c.bounds[p.first].atMost(then.Commit-1, p.then, p.key, wroteKept)
		default:
			before[p.first] += 0
			before[p.then]++
			after[p.first] = append(after[p.first], p)
		}
	}
	var sorted []int32
	for i := range c.h { // not over the map: reports come in one order
		if n, ok := before[int32(i)]; ok && n == 0 {
			sorted = append(sorted, int32(i))
		}
	}
	for next := 0; next < len(sorted); next++ {
		txn := sorted[next]
		delete(before, txn)
		for _, p := range after[txn] {
			c.bounds[p.then].above(c.bounds[txn].over+1, txn, p.key, keptIt)
			if before[p.then]--; before[p.then] == 0 {
				sorted = append(sorted, p.then)
			}
		}
	}
	for next := len(sorted) - 1; next >= 0; next-- {
		b := c.bounds[sorted[next]]
		for _, p := range after[sorted[next]] {
			b.atMost(max(c.bounds[p.then].upTo, 1)-1, p.then, p.key, wroteKept)
		}
	}
	c.cycle(before)
}

// cycle reports one cycle of the precedences among transactions each of which has another one before it that is left too.
func (c *tsChecker) cycle(left map[int32]int) {
	if len(left) == 0 {
		return
	}
	back := map[int32]precedence{}
	at := int32(-1)
	for _, p := range c.precedences {
		_, first := left[p.first]
		_, then := left[p.then]
		if first && then {
			back[p.then] = p
			at = p.then
		}
	}
	passed := map[int32]bool{}
	for ; !passed[at]; at = back[at].first {
		passed[at] = true
	}
	var steps []precedence
	var txns []int
	for again := false; !again; again = at == int32(txns[0]) {
		steps, txns = append(steps, back[at]), append(txns, int(at))
		at = back[at].first
	}
	c.addf(KindUnserializable, func() string {
		var text strings.Builder
		text.WriteString("transactions that are all committed had to be committed one before the other, in a circle")
		for _, p := range steps {
			fmt.Fprintf(&text, "; %s before %s wrote %s", c.h.name(int(p.first)), c.h.name(int(p.then)), c.d.keys[p.key])
		}
		return text.String()
	}, txns...)
}

// ended gives a timestamp that a committed transaction's commit is not below.
func (c *tsChecker) ended(txn int32) oracle.Timestamp {
	if c.h[txn].Outcome == Unknown {
		return c.bounds[txn].over + 1
	}
	return c.h[txn].Commit
}
