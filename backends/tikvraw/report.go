package tikvraw

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pingcap/kvproto/pkg/metapb"
	pd "github.com/tikv/pd/client"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// minMajor is the first major version of TiKV that has CompareAndSwap in raw mode.
const minMajor = 5

// cluster is what PD says of its TiKV servers.
type cluster struct {
	versions []string
	up       int
}

func askCluster(ctx context.Context, pdc pd.Client) (cluster, error) {
	var c cluster
	inner, end := apart(ctx)
	defer end()
	stores, err := pdc.GetAllStores(inner, pd.WithExcludeTombstone())
	if err != nil {
		return c, fmt.Errorf("asking for the TiKV servers: %w", pdFailed(ctx, err))
	}
	for _, st := range stores {
		if isTiFlash(st) {
			continue
		}
		if st.GetState() == metapb.StoreState_Up {
			c.up++
			c.versions = append(c.versions, st.GetVersion())
		}
	}
	return c, nil
}

func isTiFlash(st *metapb.Store) bool {
	for _, l := range st.GetLabels() {
		if l.GetKey() == "engine" && strings.HasPrefix(l.GetValue(), "tiflash") {
			return true
		}
	}
	return false
}

func (c cluster) check() error {
	if c.up == 0 {
		return errors.New("PD has no TiKV server that is up")
	}
	for _, v := range c.versions {
		major, _, _ := strings.Cut(strings.TrimPrefix(v, "v"), ".")
		if n, err := strconv.Atoi(major); err == nil && n < minMajor {
			return fmt.Errorf("a TiKV server has version %s: version %d.0 is the first with CompareAndSwap in raw mode", v, minMajor)
		}
	}
	return nil
}

// version names the versions of the servers, each once.
func (c cluster) version() string {
	var all []string
	seen := map[string]bool{}
	for _, v := range c.versions {
		if !seen[v] && v != "" {
			seen[v] = true
			all = append(all, v)
		}
	}
	return strings.Join(all, ", ")
}

// Report implements rowstore.Reporter. It asks PD anew.
func (s *Store) Report(ctx context.Context) (rowstore.Report, error) {
	ctx, end, err := s.begin(ctx, "report")
	if err != nil {
		return rowstore.Report{}, err
	}
	defer end()
	var c cluster
	if s.about != nil {
		if c, err = s.about(ctx); err != nil {
			return rowstore.Report{}, s.gate.Fail("report", err)
		}
	}
	report := rowstore.Report{
		Backend: "tikv",
		Layout:  formatVersion,
		Version: c.version(),
		Features: []rowstore.Feature{
			{Name: rowstore.FeatureGroups, Reason: "TiKV's raw mode changes one key atomically: secondaries commit after the primary"},
			{Name: rowstore.FeatureOnePhase, Reason: "there are no groups"},
			{Name: rowstore.FeatureOracle, Supported: true, Reason: "PD's timestamp oracle"},
			{Name: rowstore.FeatureDeferred, Reason: "every change is replicated before it is answered"},
			{Name: rowstore.FeatureSplit, Supported: true, Reason: "by region"},
			{Name: rowstore.FeatureSlots, Supported: true, Reason: "the markers of notified rows"},
			{Name: rowstore.FeatureWake, Reason: "TiKV has no push in raw mode: workers poll"},
		},
	}
	if s.oracleKind == OracleStore {
		report.Features[2].Reason = "a key of the store, moved on by a swap"
		report.Warnings = append(report.Warnings,
			"timestamps come from one key of the store and the clients' clocks: every transaction waits for that key's region, and a client whose clock is ahead moves all later timestamps ahead, permanently")
	}
	if c.up > 0 && c.up < 3 {
		report.Warnings = append(report.Warnings,
			fmt.Sprintf("the cluster has %d TiKV server(s): with fewer than three, the loss of one loses data or stops the store", c.up))
	}
	return report, nil
}
