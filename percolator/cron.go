package percolator

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Cron returns the schedule of a line as cron reads it: minute, hour, day of the month, month, day of the week, in
// that order and parted by spaces. A field is * or a list, by commas, of numbers and ranges (1-5), each with an optional
// step (*/15, 8-18/2; 10/20 means from 10 on). Months and days of the week may also be names (jan, MON); Sunday is 0 and 7. If
// neither day begins with *, a day that matches one of the two counts. @hourly, @daily (or @midnight), @weekly, @monthly
// and @yearly (or @annually) stand for lines.
//
// The times are those of loc, of UTC if loc is nil. Each time of the clock counts once: one that a change of clocks
// skips is at the end of the gap, and one that happens twice is where it happens first. So where clocks are set back by an hour, a line
// such as */5 rests for that hour; in UTC it does not. Use a location by its name: time.Local may be another one in each process.
//
// A line that is malformed, has a value out of range, or never comes (30 February) is an error that matches ErrInvalid and
// names the field.
func Cron(line string, loc *time.Location) (Schedule, error) {
	if loc == nil {
		loc = time.UTC
	}
	text := strings.Join(strings.Fields(line), " ")
	expanded := text
	if strings.HasPrefix(text, "@") {
		var ok bool
		if expanded, ok = cronNames[strings.ToLower(text)]; !ok {
			return nil, fmt.Errorf("percolator: Cron: %w: %q is none of @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually", ErrInvalid, text)
		}
	}
	fields := strings.Fields(expanded)
	if len(fields) != len(cronFields) {
		return nil, fmt.Errorf("percolator: Cron: %w: the line %q has %d fields; it must have 5: minute, hour, day of the month, month, day of the week", ErrInvalid, line, len(fields))
	}
	c := &cron{text: text, loc: loc}
	for i, field := range fields {
		set, err := cronFields[i].parse(field)
		if err != nil {
			return nil, fmt.Errorf("percolator: Cron: %w: the line %q: %s %w", ErrInvalid, line, cronFields[i].name, err)
		}
		c.sets[i] = set
	}
	if c.sets[cronWeekday]&(1<<7) != 0 {
		c.sets[cronWeekday] |= 1
	}
	c.eitherDay = !strings.HasPrefix(fields[cronDay], "*") && !strings.HasPrefix(fields[cronWeekday], "*")
	if c.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("percolator: Cron: %w: the line %q never comes: no month has such a day", ErrInvalid, line)
	}
	return c, nil
}

// Indices of the fields of a line.
const (
	cronMinute = iota
	cronHour
	cronDay
	cronMonth
	cronWeekday
)

var cronNames = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// cronField is what a field may hold.
type cronField struct {
	name      string
	low, high int
	names     []string // of the values from low on
}

var cronFields = [...]cronField{
	cronMinute:  {"the minute", 0, 59, nil},
	cronHour:    {"the hour", 0, 23, nil},
	cronDay:     {"the day of the month", 1, 31, nil},
	cronMonth:   {"the month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	cronWeekday: {"the day of the week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

// parse returns the values of a field as a set of bits.
func (f *cronField) parse(text string) (set uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(part, "/")
		by := 1
		if stepped {
			if by, err = cronNumber(step); err != nil || by < 1 {
				return 0, fmt.Errorf("has a bad step in %q", part)
			}
		}
		from, to := f.low, f.high
		if span != "*" {
			first, last, ranged := strings.Cut(span, "-")
			if from, err = f.value(first); err != nil {
				return 0, err
			}
			switch {
			case ranged:
				if to, err = f.value(last); err != nil {
					return 0, err
				}
			case !stepped:
				to = from
			}
			if from > to {
				return 0, fmt.Errorf("has the range %q, which goes back", span)
			}
		}
		for v := from; v <= to; v += by {
			set |= 1 << v
		}
	}
	return set, nil
}

// value reads one value.
func (f *cronField) value(text string) (int, error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.low + i, nil
		}
	}
	v, err := cronNumber(text)
	if err != nil || v < f.low || v > f.high {
		return 0, fmt.Errorf("has %q; it must be from %d to %d", text, f.low, f.high)
	}
	return v, nil
}

// cronNumber reads a number without a sign.
func cronNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err //nolint:gosec,wrapcheck // of 16 bits; the caller says what is wrong
}

// cron is a line.
type cron struct {
	text      string
	loc       *time.Location
	sets      [len(cronFields)]uint64
	eitherDay bool // a day that matches the day of the month or of the week counts
}

func (c *cron) String() string { return "cron " + c.text + " in " + c.loc.String() }

// cronYears is how far ahead a line is looked for: a 29 February that is a Sunday may be 40 years away.
const cronYears = 41

// Next implements Schedule.
func (c *cron) Next(after time.Time) time.Time {
	// Times of the clock are kept as times of UTC. Their order is that of the moments that they stand for.
	local := after.In(c.loc)
	clock := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC)
	end := clock.Year() + cronYears
	for clock = clock.Add(time.Minute); clock.Year() <= end; {
		y, m, d := clock.Date()
		switch {
		case c.sets[cronMonth]&(1<<m) == 0:
			clock = time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
		case !c.matchesDay(clock):
			clock = time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)
		case c.sets[cronHour]&(1<<clock.Hour()) == 0:
			clock = time.Date(y, m, d, clock.Hour()+1, 0, 0, 0, time.UTC)
		default:
			minutes := c.sets[cronMinute] >> clock.Minute()
			if minutes == 0 {
				clock = time.Date(y, m, d, clock.Hour()+1, 0, 0, 0, time.UTC)
				continue
			}
			clock = clock.Add(time.Duration(bits.TrailingZeros64(minutes)) * time.Minute)
			// What is not later is a time that happens twice, or that was skipped.
			if at := firstMoment(clock, c.loc); at.After(after) {
				return at
			}
			clock = clock.Add(time.Minute)
		}
	}
	return time.Time{}
}

// matchesDay tells whether the line has the day of a time of the clock.
func (c *cron) matchesDay(clock time.Time) bool {
	day, weekday := c.sets[cronDay]&(1<<clock.Day()) != 0, c.sets[cronWeekday]&(1<<clock.Weekday()) != 0
	if c.eitherDay {
		return day || weekday
	}
	return day && weekday
}

// firstMoment is when the clock of a location shows a time first, or the end of the gap that skips it. clock is that time as one of UTC.
func firstMoment(clock time.Time, loc *time.Location) time.Time {
	y, m, d := clock.Date()
	guess := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, loc)
	begins, ends := guess.ZoneBounds()
	offsets := []int{offset(guess)}
	if !begins.IsZero() {
		offsets = append(offsets, offset(begins.Add(-1)))
	}
	if !ends.IsZero() {
		offsets = append(offsets, offset(ends))
	}
	var first time.Time
	for _, o := range offsets {
		at := clock.Add(-time.Duration(o) * time.Second).In(loc)
		if offset(at) == o && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		return first
	}
	// In a gap the guess is in one of the two zones beside it.
	if shown := asClock(guess); shown.After(clock) {
		return begins // by the zone before, which shows more than there is: the guess lies past the gap
	}
	return ends
}

// offset is that of the location at a time, in seconds.
func offset(t time.Time) int {
	_, o := t.Zone()
	return o
}

// asClock is what the clock shows at a time, as a time of UTC.
func asClock(t time.Time) time.Time {
	return t.Add(time.Duration(offset(t)) * time.Second).UTC()
}
