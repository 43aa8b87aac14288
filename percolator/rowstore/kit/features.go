package kit

import "github.com/percolate-go/percolate/percolator/rowstore"

// Features lists the optional abilities of a store under the names of package rowstore, for
// its Report: an ability is supported if rowstore.Unwrap finds it. reasons says by name why
// one is not there, or how it is done; a missing ability without a reason is left out.
func Features(s rowstore.Store, reasons map[string]string) []rowstore.Feature {
	var features []rowstore.Feature
	add := func(name string, supported bool) {
		if reason := reasons[name]; supported || reason != "" {
			features = append(features, rowstore.Feature{Name: name, Supported: supported, Reason: reason})
		}
	}
	g, groups := rowstore.Unwrap[rowstore.Grouper](s)
	add(rowstore.FeatureGroups, groups)
	add(rowstore.FeatureOnePhase, groups && g.AssignsTimestamps(g.GroupKey("table", "row")))
	_, defers := rowstore.Unwrap[rowstore.Deferrer](s)
	add(rowstore.FeatureDeferred, defers)
	_, draws := rowstore.Unwrap[rowstore.OracleProvider](s)
	add(rowstore.FeatureOracle, draws)
	_, snapshots := rowstore.Unwrap[rowstore.SnapshotReader](s)
	add(rowstore.FeatureSnapshots, snapshots)
	_, splits := rowstore.Unwrap[rowstore.Splitter](s)
	add(rowstore.FeatureSplit, splits)
	_, bySlots := rowstore.Unwrap[rowstore.SlotScanner](s)
	add(rowstore.FeatureSlots, bySlots)
	_, scans := rowstore.Unwrap[rowstore.SnapshotScanner](s)
	add(rowstore.FeatureScans, scans)
	_, wakes := rowstore.Unwrap[rowstore.Waker](s)
	add(rowstore.FeatureWake, wakes)
	return features
}
