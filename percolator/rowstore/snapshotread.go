package rowstore

// At returns the reads with ts in place of AssignedTimestamp.
func (d *SnapshotRead) At(ts Timestamp) []RowRead {
	n := 0
	for i := range d.Reads {
		n += len(d.Reads[i].Selectors)
	}
	selectors := make([]Selector, 0, n)
	reads := make([]RowRead, len(d.Reads))
	for i, r := range d.Reads {
		from := len(selectors)
		for _, p := range r.Selectors {
			if p.To == AssignedTimestamp {
				p.To = ts
			}
			selectors = append(selectors, p)
		}
		r.Selectors = selectors[from:len(selectors):len(selectors)]
		reads[i] = r
	}
	return reads
}
