package format

import "time"

// Overdue is for how much longer than the retention history is kept where the safe point of the database is safe: some of the time between two
// collections, or more if nobody collects, or a hold keeps the history. It is 0 before the first collection; hints tell then what there is to collect.
func (s *Settings) Overdue(now, safe Timestamp) time.Duration {
	return overdue(now, safe, s.RetentionMs)
}

// TableOverdue is Overdue of a table with settings of its own, of which point is the safe point of its own. It is 0 as long as the table need not have been
// collected by its retention, which was made shorter: transactions from before may run on for the MaxTxnAge of the database, and then there must
// be time for a collection.
func (s *Settings) TableOverdue(now, safe Timestamp, table string, point TableSafePoint) time.Duration {
	of := s.Of(table)
	// Half the time against the retention: twice the retention may be more than a Duration holds.
	if of.Since == 0 && point.SafePoint == 0 || of.Since != 0 && (now.Sub(of.Since)-millis(s.MaxTxnAgeMs))/2 < millis(of.RetentionMs) {
		return 0
	}
	return overdue(now, max(safe, point.SafePoint), of.RetentionMs)
}

func overdue(now, safe Timestamp, retentionMs int64) time.Duration {
	if safe == 0 {
		return 0
	}
	return max(0, now.Sub(safe)-millis(retentionMs))
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
