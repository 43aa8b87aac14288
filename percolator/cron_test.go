package percolator

import (
	"fmt"
	"testing"
	"time"
	_ "time/tzdata" // the zones are the same on every machine

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func location(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	require.NoError(t, err)
	return loc
}

// A bad line is refused, and the error names what is wrong with it.
func TestCronRefuses(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"":                          "has 0 fields",
		"* * * *":                   "has 4 fields",
		"0 * * * * *":               "has 6 fields",
		"60 * * * *":                "the minute",
		"* 24 * * *":                "the hour",
		"* * 0 * *":                 "the day of the month",
		"* * 32 * *":                "the day of the month",
		"* * * 13 *":                "the month",
		"* * * 0 *":                 "the month",
		"* * * * 8":                 "the day of the week",
		"* * * foo *":               `"foo"`,
		"mon * * * *":               `"mon"`,
		"-1 * * * *":                "the minute",
		"+1 * * * *":                "the minute",
		"1- * * * *":                "the minute",
		"5-1 * * * *":               "goes back",
		"*/0 * * * *":               "step",
		"*/x * * * *":               "step",
		"*/ * * * *":                "step",
		"1,,2 * * * *":              "the minute",
		", * * * *":                 "the minute",
		"1/2/3 * * * *":             "step",
		"? * * * *":                 "the minute",
		"99999999999999999 * * * *": "the minute",
		"0 0 30 2 *":                "never comes",
		"0 0 31 4,6,9,11 *":         "never comes",
		"@reboot":                   "@hourly",
		"@every 5s":                 "@hourly",
		"TZ=UTC * * * * *":          "fields",
		"CRON_TZ=0":                 "fields",
	} {
		s, err := Cron(line, nil)
		require.ErrorIs(t, err, ErrInvalid, "%q", line)
		require.ErrorContains(t, err, says, "%q", line)
		require.Nil(t, s)
	}
}

// What lines mean, in UTC.
func TestCronTimes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ line, after, want string }{
		{"* * * * *", "2024-01-31T23:59:59Z", "2024-02-01T00:00:00Z"},
		{"* * * * *", "2024-01-31T23:59:00Z", "2024-02-01T00:00:00Z"},
		{"*/15 * * * *", "2024-01-01T00:15:00Z", "2024-01-01T00:30:00Z"},
		{"10/20 * * * *", "2024-01-01T00:50:00Z", "2024-01-01T01:10:00Z"},
		{"0 8-18/5 * * *", "2024-01-01T13:00:01Z", "2024-01-01T18:00:00Z"},
		{"30 2 * * *", "2024-01-01T02:30:00Z", "2024-01-02T02:30:00Z"},
		{"0 0 29 2 *", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"0 0 29 feb *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"0 0 29 2 */7", "2032-03-01T00:00:00Z", "2060-02-29T00:00:00Z"},
		{"0 0 29 2 */7", "2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"},
		{"0 0 31 * *", "2024-01-31T00:00:00Z", "2024-03-31T00:00:00Z"},
		{"0 0 13 * FRI", "2024-09-01T00:00:00Z", "2024-09-06T00:00:00Z"},
		{"0 0 13 * fri", "2024-09-06T00:00:00Z", "2024-09-13T00:00:00Z"},
		{"0 0 15 * mon", "2024-09-09T00:00:00Z", "2024-09-15T00:00:00Z"},
		{"0 0 */2 * mon", "2024-09-01T00:00:00Z", "2024-09-09T00:00:00Z"},
		{"0 0 * * 7", "2024-09-02T00:00:00Z", "2024-09-08T00:00:00Z"},
		{"0 0 * * 5-7", "2024-09-07T00:00:00Z", "2024-09-08T00:00:00Z"},
		{"0 0 1 JAN-mar,Dec *", "2024-03-01T00:00:00Z", "2024-12-01T00:00:00Z"},
		{"@hourly", "2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z"},
		{"@Daily", "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"},
		{"@weekly", "2024-09-02T00:00:00Z", "2024-09-08T00:00:00Z"},
		{"@monthly", "2024-09-02T00:00:00Z", "2024-10-01T00:00:00Z"},
		{"@yearly", "2024-09-02T00:00:00Z", "2025-01-01T00:00:00Z"},
		{" 0  0 * *\t* ", "1969-12-31T12:00:00Z", "1970-01-01T00:00:00Z"},
	} {
		s, err := Cron(test.line, nil)
		require.NoError(t, err, test.line)
		after, err := time.Parse(time.RFC3339, test.after)
		require.NoError(t, err)
		require.Equal(t, test.want, s.Next(after).Format(time.RFC3339), "%q after %s", test.line, test.after)
	}
}

// A time of the clock that is skipped fires at the end of the gap, and one that comes twice fires once.
func TestCronWhereClocksChange(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		zone, line, after string
		want              []string
	}{
		{"America/New_York", "30 2 * * *", "2024-03-09T12:00:00-05:00", []string{"2024-03-10T03:00:00-04:00", "2024-03-11T02:30:00-04:00"}},
		{"America/New_York", "0,30 2,3 10 3 *", "2024-03-10T01:00:00-05:00", []string{"2024-03-10T03:00:00-04:00", "2024-03-10T03:30:00-04:00"}},
		{"America/New_York", "30 1 * * *", "2024-11-03T00:00:00-04:00", []string{"2024-11-03T01:30:00-04:00", "2024-11-04T01:30:00-05:00"}},
		{"America/New_York", "30 1 * * *", "2024-11-03T01:10:00-05:00", []string{"2024-11-04T01:30:00-05:00"}},
		{"America/New_York", "*/30 * * * *", "2024-11-03T01:00:00-04:00", []string{"2024-11-03T01:30:00-04:00", "2024-11-03T02:00:00-05:00"}},
		{"Australia/Lord_Howe", "15 2 * * *", "2024-10-05T12:00:00+10:30", []string{"2024-10-06T02:30:00+11:00", "2024-10-07T02:15:00+11:00"}},
		{"America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00-03:00", []string{"2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"}},
		{"Pacific/Apia", "0 12 * * *", "2011-12-29T11:00:00-10:00", []string{"2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"}},
	} {
		s, err := Cron(test.line, location(t, test.zone))
		require.NoError(t, err)
		at, err := time.Parse(time.RFC3339, test.after)
		require.NoError(t, err)
		for _, want := range test.want {
			at = s.Next(at)
			require.Equal(t, want, at.Format(time.RFC3339), "%q in %s", test.line, test.zone)
		}
	}
}

// Cron agrees with somebody who looks at the clock every minute, over changes of clocks too.
func TestCronAgainstTheClock(t *testing.T) {
	t.Parallel()
	changes := map[string]time.Time{
		"America/New_York": time.Date(2024, 3, 10, 7, 0, 0, 0, time.UTC), "Europe/Berlin": time.Date(2024, 10, 27, 1, 0, 0, 0, time.UTC),
		"Australia/Lord_Howe": time.Date(2024, 4, 6, 15, 0, 0, 0, time.UTC), "America/Sao_Paulo": time.Date(2018, 11, 4, 3, 0, 0, 0, time.UTC),
		"Africa/Casablanca": time.Date(2024, 3, 10, 2, 0, 0, 0, time.UTC), "UTC": time.Date(2024, 12, 31, 23, 0, 0, 0, time.UTC),
		"Asia/Kolkata": time.Date(2024, 2, 28, 23, 0, 0, 0, time.UTC), "Pacific/Apia": time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC),
	}
	rapid.Check(t, func(r *rapid.T) {
		zone := rapid.SampledFrom([]string{"America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca", "UTC", "Asia/Kolkata", "Pacific/Apia"}).Draw(r, "zone")
		loc := location(t, zone)
		minute := rapid.SampledFrom([]string{"*", "0", "30", "*/7", "15,45", "59"}).Draw(r, "minute")
		hour := rapid.SampledFrom([]string{"*", "0", "1", "2", "0-3", "*/5", "23"}).Draw(r, "hour")
		day := rapid.SampledFrom([]string{"*", "*/2", "1,10,27", "4-6,28-31"}).Draw(r, "day")
		weekday := rapid.SampledFrom([]string{"*", "sun", "1-5", "*/2"}).Draw(r, "weekday")
		line := fmt.Sprintf("%s %s %s * %s", minute, hour, day, weekday)
		s, err := Cron(line, loc)
		require.NoError(r, err)
		c := s.(*cron)
		change := changes[zone]
		after := change.Add(time.Duration(rapid.IntRange(-26*3600, 26*3600).Draw(r, "after")) * time.Second)

		// The clock is looked at from well before to well after. What it has not shown when it shows a later time was skipped.
		var want time.Time
		shown := asClock(change.Add(-80 * time.Hour).In(loc)).Add(-time.Minute)
		for at := change.Add(-80 * time.Hour); want.IsZero() && at.Before(change.Add(80*time.Hour)); at = at.Add(time.Minute) {
			for now := asClock(at.In(loc)); shown.Before(now); {
				shown = shown.Add(time.Minute)
				matches := c.sets[cronMinute]&(1<<shown.Minute()) != 0 && c.sets[cronHour]&(1<<shown.Hour()) != 0 && c.matchesDay(shown)
				if matches && at.After(after) {
					want = at
					break
				}
			}
		}
		got := s.Next(after)
		if want.IsZero() {
			require.True(r, got.After(change.Add(79*time.Hour)), "%q in %s after %v: %v", line, zone, after, got)
			return
		}
		require.Equal(r, want.In(loc), got, "%q in %s after %v", line, zone, after)
	})
}

// FuzzCron: no line breaks anything, and what a line comes to is later than what it was asked for.
func FuzzCron(f *testing.F) {
	f.Add("*/15 8-18 * * mon-fri", int64(1_700_000_000))
	f.Add("0 0 29 2 *", int64(-1))
	f.Fuzz(func(t *testing.T, line string, sec int64) {
		s, err := Cron(line, location(t, "Europe/Berlin"))
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		after := time.Unix(sec%100_000_000_000, 0)
		require.True(t, s.Next(after).After(after))
	})
}
