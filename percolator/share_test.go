package percolator

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

var shareQueues = []*queue{
	{o: &Observer{id: "a"}, table: "t", column: "v"},
	{o: &Observer{id: "b"}, table: "t", column: "v"},
	{o: &Observer{id: "c"}, table: "u", column: "v"},
}

// sharer is a member that runs some of shareQueues, with the weights given; a negative one
// stands for an observer that it does not run.
func sharer(id string, from, until Timestamp, weights ...int) member {
	m := member{id: id, record: format.Member{From: from, Until: until}}
	for i, weight := range weights {
		if q := shareQueues[i]; weight >= 0 {
			m.record.Works = append(m.record.Works, format.MemberWork{Observer: q.o.id, Table: q.table, Column: q.column, Weight: weight})
		}
	}
	return m
}

// owners are the shares that some members have at a time.
type owners []struct {
	id string
	*share
}

func ownersAt(list []member, q *queue, now Timestamp) (all owners) {
	for i := range list {
		if _, ok := list[i].weightOf(q); ok {
			s := newShares([]*queue{q}, list, list[i].id, 0).at(q, now)
			all = append(all, struct {
				id string
				*share
			}{list[i].id, s})
		}
	}
	return all
}

// of are the members that take a slot for theirs.
func (o owners) of(slot uint16) (ids []string) {
	for _, s := range o {
		if s.has(slot) {
			ids = append(ids, s.id)
		}
	}
	return ids
}

// Whatever the members are, each slot of an observer that somebody runs has an owner, and
// one alone if anybody takes part.
func TestEachSlotHasAnOwner(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SampledFrom([]Timestamp{0, 10, 20, 30})
		weights := rapid.SliceOfN(rapid.SampledFrom([]int{-1, 0, 1, 3, 16, 16, 16, 1000, math.MaxInt32}), 3, 3)
		var list []member
		for i := range rapid.IntRange(1, 12).Draw(t, "members") {
			list = append(list, sharer(fmt.Sprint("member ", i), times.Draw(t, "from"), times.Draw(t, "until"), weights.Draw(t, "weights")...))
		}
		now := Timestamp(rapid.Uint64Range(0, 40).Draw(t, "now"))
		q := rapid.SampledFrom(shareQueues).Draw(t, "observer")
		runners, part, soon := 0, 0, 0
		for i := range list {
			if _, ok := list[i].weightOf(q); ok {
				runners++
				if list[i].takesPart(now) {
					part++
				}
				if now < list[i].record.From {
					soon++
				}
			}
		}
		at := ownersAt(list, q, now)
		for range 20 {
			owners := at.of(rapid.Uint16().Draw(t, "slot"))
			switch {
			case part > 0, soon > 0:
				require.Len(t, owners, 1)
			default:
				require.Len(t, owners, runners, "if nobody takes part, everybody may run everything")
			}
		}
	})
}

// The slots of each party are those that the ring's definition gives it: a slot goes to the first point from where it begins.
func TestRingByItsDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seeds := rapid.SliceOfNDistinct(rapid.Uint64(), 1, 30, rapid.ID).Draw(t, "seeds")
		weights := rapid.SampledFrom([]int{1, 2, 3, 16, 16, 16, 1000, math.MaxInt32})
		var parties []party
		for _, seed := range seeds {
			parties = append(parties, party{seed: seed, weight: weights.Draw(t, "weight")})
		}
		most := slices.MaxFunc(parties, func(a, b party) int { return cmp.Compare(a.weight, b.weight) }).weight
		type point struct {
			at    uint64
			party int
		}
		var points []point
		for i := range parties {
			for k := range parties[i].points(most) {
				points = append(points, point{parties[i].point(k), i})
			}
		}
		slices.SortFunc(points, func(a, b point) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(parties[a.party].seed, parties[b.party].seed))
		})
		want := make([]slotSet, len(parties))
		for slot, next := 0, 0; slot < rowstore.Slots; slot++ {
			for next < len(points) && points[next].at < uint64(slot)<<48 {
				next++
			}
			want[points[next%len(points)].party].add(uint16(slot))
		}
		for i := range parties {
			require.True(t, want[i] == *ring(parties, i), "party %d of %d", i, len(parties))
		}
	})
}

// Members that come or go at about the same time change the shares at the same moment, which is not before anybody expects it.
func TestSharesChangeTogether(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := Timestamp(rapid.Uint64Range(0, uint64(oracle.Max)).Draw(t, "at"))
		d := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "after"))
		got := dated(at, d)
		require.GreaterOrEqual(t, got, at.Add(d))
		require.LessOrEqual(t, got, at.Add(d+max(d/8, time.Millisecond)))
	})
	lease := 3 * time.Second
	var list []member
	start := oracle.FromTime(time.Unix(1000, 0))
	for i := range 1000 {
		m := sharer(fmt.Sprint("member ", i), 0, 0, 16)
		m.joined = start.Add(time.Duration(i)*time.Millisecond) + Timestamp(i)
		m.record.From, m.record.Lease = dated(m.joined, handOver(lease)), lease
		list = append(list, m)
	}
	require.LessOrEqual(t, len(newShares(shareQueues[:1], list, "member 0", start)[shareQueues[0]]), 10, "times at which the shares change")
}

// BenchmarkShares has what a worker does when it has read a list of members who have joined within a second.
func BenchmarkShares(b *testing.B) {
	for _, members := range []int{8, 100, 1000} {
		b.Run(strconv.Itoa(members), func(b *testing.B) {
			start, lease := oracle.FromTime(time.Unix(1000, 0)), 3*time.Second
			var list []member
			for i := range members {
				m := sharer(fmt.Sprint("member ", i), 0, 0, 16)
				m.joined = start.Add(time.Duration(i) * time.Second / time.Duration(members))
				m.record.From, m.record.Lease = dated(m.joined, handOver(lease)), lease
				list = append(list, m)
			}
			for b.Loop() {
				newShares(shareQueues[:1], list, "member 0", start)
			}
		})
	}
}

// sharesOf counts the slots of each member.
func sharesOf(t *testing.T, list []member, q *queue) (owners []string, count map[string]int) {
	t.Helper()
	all := ownersAt(list, q, 1)
	count = map[string]int{}
	for slot := range rowstore.Slots {
		of := all.of(uint16(slot))
		require.Len(t, of, 1)
		owners = append(owners, of[0])
		count[of[0]]++
	}
	return owners, count
}

// Members of equal weight have about the same number of slots, and others a number in
// proportion to their weight, as exactly as their number of points allows.
func TestSharesAreInProportion(t *testing.T) {
	t.Parallel()
	for name, weights := range map[string][]int{
		"equal": {16, 16, 16, 16, 16, 16, 16, 16}, "three": {1, 1, 1}, "different": {1, 2, 5, 8, 16, 32}, "one of them stuck": {16, 0, 16}, "far apart": {1, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var list []member
			sum := 0
			for i, weight := range weights {
				list = append(list, sharer(fmt.Sprint("member ", i), 0, 0, weight))
				sum += weight
			}
			_, count := sharesOf(t, list, shareQueues[0])
			for i, weight := range weights {
				want := float64(rowstore.Slots) * float64(weight) / float64(sum)
				points := math.Ceil(ringPoints * float64(weight) / float64(slices.Max(weights)))
				require.InDelta(t, want, count[list[i].id], 4*want/math.Sqrt(max(points, 1))+1, "member %d", i)
			}
		})
	}
}

// A member that comes takes slots, and one that goes leaves slots. No other slot moves.
func TestSharesMoveLittle(t *testing.T) {
	t.Parallel()
	for _, weight := range []int{16, 5} { // of the one that comes or goes, beside those of 16
		var list []member
		for i := range 9 {
			list = append(list, sharer(fmt.Sprint("member ", i), 0, 0, 16))
		}
		list[8] = sharer("member 8", 0, 0, weight)
		with, count := sharesOf(t, list, shareQueues[0])
		without, _ := sharesOf(t, list[:8], shareQueues[0])
		moved := 0
		for slot := range with {
			if with[slot] != without[slot] {
				require.Equal(t, "member 8", with[slot], "slot %d moved between others", slot)
				moved++
			}
		}
		require.Equal(t, count["member 8"], moved)
	}
}

// What members agree upon never changes: programs of several versions run beside each other.
func TestRing(t *testing.T) {
	t.Parallel()
	list := []member{sharer("a", 0, 0, 16), sharer("b", 0, 0, 16), sharer("c", 0, 0, 4)}
	owners, count := sharesOf(t, list, shareQueues[0])
	require.Equal(t, map[string]int{"a": 27857, "b": 30029, "c": 7650}, count)
	var some []string
	for slot := 0; slot < len(owners); slot += 6553 {
		some = append(some, owners[slot])
	}
	require.Equal(t, []string{"a", "b", "a", "a", "b", "a", "b", "a", "a", "a", "a"}, some)
}

// The ranges of a set are its slots, as few as may be, and a scan that goes on from some slot
// leaves out those before it.
func TestRangesOfSlots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var set slotSet
		for range rapid.IntRange(0, 5).Draw(t, "ranges") {
			first := rapid.OneOf(rapid.Uint16(), rapid.SampledFrom([]uint16{0, 63, 64, 127, 65_472, 65_535})).Draw(t, "first")
			for i := range rapid.IntRange(1, 200).Draw(t, "length") {
				if slot := int(first) + i; slot < rowstore.Slots {
					set.add(uint16(slot))
				}
			}
		}
		check := func(ranges []rowstore.SlotRange, from int) {
			var again slotSet
			for i, r := range ranges {
				require.LessOrEqual(t, r.First, r.Last)
				require.True(t, i == 0 || int(r.First) > int(ranges[i-1].Last)+1, "%v", ranges)
				for slot := int(r.First); slot <= int(r.Last); slot++ {
					again.add(uint16(slot))
				}
			}
			for slot := range rowstore.Slots {
				if want := slot >= from && set.has(uint16(slot)); want != again.has(uint16(slot)) {
					t.Fatalf("slot %d: %v", slot, want)
				}
			}
		}
		ranges := set.ranges()
		check(ranges, 0)
		from := rapid.Uint16().Draw(t, "from")
		check(slotsFrom(ranges, from), int(from))
		check(ranges, 0)
	})
}

// Members with different observers have the shares of each observer among those that run it.
func TestSharesOfDifferentObservers(t *testing.T) {
	t.Parallel()
	list := []member{sharer("a", 0, 0, 16, -1), sharer("ab", 0, 0, 16, 16), sharer("b", 0, 0, -1, 16)}
	for i, each := range []int{1, 1, 0} {
		at := ownersAt(list, shareQueues[i], 1)
		for slot := range uint16(1000) {
			require.Len(t, at.of(slot), each)
		}
	}
}

// What changes at a time changes then, and next tells of it.
func TestSharesOfATime(t *testing.T) {
	t.Parallel()
	q := shareQueues[0]
	list := []member{sharer("a", 0, 20, 16), sharer("b", 10, 0, 16), sharer("c", 0, 5, 0)}
	kind := func(id string, now Timestamp) shareKind {
		return newShares(shareQueues[:1], list, id, 0).at(q, now).kind
	}
	for _, x := range []struct {
		now  Timestamp
		a, b shareKind
	}{
		{0, shareAll, shareNone},
		{9, shareAll, shareNone},
		{10, shareSlots, shareSlots},
		{19, shareSlots, shareSlots},
		{20, shareNone, shareAll},
		{math.MaxInt64, shareNone, shareAll},
	} {
		require.Equal(t, x.a, kind("a", x.now), "at %d", x.now)
		require.Equal(t, x.b, kind("b", x.now), "at %d", x.now)
	}
	s := newShares(shareQueues[:1], list, "a", 0)
	var times []Timestamp
	for now := s.next(0); now > 0; now = s.next(now) {
		times = append(times, now)
	}
	require.Equal(t, []Timestamp{5, 10, 20}, times)
	for now := range Timestamp(30) {
		later := newShares(shareQueues[:1], list, "a", now)
		require.Equal(t, s.next(now), later.next(now), "at %d", now)
		for at := now; at < 30; at++ {
			require.True(t, assert.ObjectsAreEqual(s.at(q, at), later.at(q, at)), "at %d, seen from %d", at, now)
		}
		require.Less(t, later[q][0].from, now+1)
		require.True(t, len(later[q]) == 1 || later[q][1].from > now, "shares that are over are kept")
	}
}

// Where those before have gone, the ones that have just joined share at once what they
// would share later.
func TestSharesOfThoseToCome(t *testing.T) {
	t.Parallel()
	q := shareQueues[0]
	list := []member{sharer("a", 10, 0, 16), sharer("b", 12, 0, 16), sharer("c", 0, 5, 16)}
	at4, at5, at11, at12 := ownersAt(list, q, 4), ownersAt(list, q, 5), ownersAt(list, q, 11), ownersAt(list, q, 12)
	for slot := range uint16(1000) {
		require.Equal(t, []string{"c"}, at4.of(slot))
		soon := at5.of(slot)
		require.Len(t, soon, 1)
		require.Equal(t, []string{"a"}, at11.of(slot), "once one has a share it has all until the other has one")
		require.Equal(t, soon, at12.of(slot))
	}
}

// Of members that have joined at once, the first one has everything until the others have
// seen it, although their records say at first that they begin at once.
func TestSharesOfThoseWhoJoinedAtOnce(t *testing.T) {
	t.Parallel()
	at := oracle.FromTime(time.Unix(1000, 0))
	lease := 3 * time.Second
	join := func(id string, joined, from Timestamp) member {
		m := sharer(id, from, 0, 16)
		m.joined, m.record.Lease = joined, lease
		return m
	}
	list := []member{join("b", at+1, at+1), join("a", at, at), join("c", at+2, at.Add(time.Minute))}
	dateJoins(list)
	require.Equal(t, []Timestamp{dated(at+1, handOver(lease)), at, at.Add(time.Minute)},
		[]Timestamp{list[0].record.From, list[1].record.From, list[2].record.From})
	before, after := ownersAt(list, shareQueues[0], at+5), ownersAt(list, shareQueues[0], at.Add(lease))
	for slot := range uint16(100) {
		require.Equal(t, []string{"a"}, before.of(slot))
		require.Len(t, after.of(slot), 1)
	}
}

// The estimate of the oracle's time never goes back behind what was drawn.
func TestEstimateOfTheTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wk := watching(t, w.client())
	require.Zero(t, wk.now())
	drawn := Timestamp(1) << 40
	wk.member.time.Store(&oracleTime{drawn, w.clock.Now()})
	require.Equal(t, drawn, wk.now())
	w.clock.advance(time.Second)
	require.Equal(t, drawn.Add(time.Second), wk.now())
	w.clock.advance(-time.Hour)
	require.Equal(t, drawn, wk.now())
}
