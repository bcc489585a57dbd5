package kernel

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// differsOnPurpose lists each field in which the model's answer is not that of a published card, by
// firmware where only some differ, and why.
func differsOnPurpose() map[string]string {
	return map[string]string{
		"14.32.1010 max_qp": "set on cards by a profile of the firmware (131,072 or 262,144)",
		"- max_qp":          "set on cards by a profile of the firmware (131,072 or 262,144)",
		"28.42.1000 max_qp": "set on cards by a profile of the firmware (131,072 or 262,144)",
		"16.23.1020 max_pd": "half of that here; a process takes one",
		"max_wq_type_rq":    "an eighth of that here; a process takes at most 64",
		"max_rwq_indirection_tables": "more here; a process takes one for each protocol that it " +
			"spreads",
	}
}

// TestPublishedDevices asks the model for what owners of cards have published of theirs.
func TestPublishedDevices(t *testing.T) {
	const name = "../../dv/mlx5/testdata/cards/devices.txt"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	named, seen, cards := differsOnPurpose(), map[string]bool{}, 0
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(line), " | ")
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 5 || !strings.HasPrefix(f[0], "https://") {
			t.Fatalf("%s: %q", name, line)
		}
		cards++
		said := saidByModel(t, cardOf(t, f[2]))
		for field := range strings.FieldsSeq(f[4]) {
			key, value, _ := strings.Cut(field, "=")
			want, err := strconv.ParseUint(value, 0, 64)
			got, known := said[key]
			if err != nil {
				t.Fatalf("%s: %s: %v", name, field, err)
			}
			if !known && !strings.HasPrefix(key, "qp_rate_limit") {
				t.Errorf("%s: field %s is compared with nothing", f[0], key)
			}
			if key == "device_cap_flags" {
				got, want = got&ofFrames, want&ofFrames
			}
			if got == want || !known {
				continue
			}
			why := key
			if named[f[3]+" "+key] != "" {
				why = f[3] + " " + key
			}
			if seen[why] = true; named[why] == "" {
				t.Errorf("%s: %s, %s: %s is %#x, the model says %#x", f[0], f[1], f[3], key,
					want, got)
			}
		}
	}
	for _, why := range slices.Sorted(maps.Keys(named)) {
		if !seen[why] {
			t.Errorf("%s: no published card differs so from the model any more", why)
		}
	}
	if cards < 9 {
		t.Errorf("%d cards", cards)
	}
}

// ofFrames holds the bits of device_cap_flags that concern raw packets or every transport: events
// of the port, and checksums and rules. The others are of RDMA, which the model does not implement
// (linux include/rdma/ib_verbs.h, ib_device_cap_flags).
const ofFrames = 0x20 | 0x400 | 0x800 | 0x1000 | uint64(uverbs.DevCapRawIPCsum|
	uverbs.DevCapManagedFlowSteering)

// cardOf returns the card with that PCI device id; "-" is that with the clock of ConnectX-5.
func cardOf(t *testing.T, id string) simnic.Card {
	t.Helper()
	if id == "-" {
		id = "0x1017"
	}
	for _, c := range simnic.Cards() {
		if fmt.Sprintf("%#04x", c.DeviceID) == id {
			return c
		}
	}
	t.Fatalf("the model has no card %s", id)
	return simnic.Card{}
}

// saidByModel returns what the model answers to the queries behind "ibv_devinfo -v", by the names
// that it prints.
func saidByModel(t *testing.T, card simnic.Card) map[string]uint64 {
	t.Helper()
	nic, err := simnic.New(simnic.Config{Card: card.Name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	n := &node{linux: New(nic, Config{}), nic: nic}
	r := n.deviceCaps()
	b := r.Base
	return map[string]uint64{
		"max_qp": uint64(b.MaxQP), "max_qp_wr": uint64(b.MaxQPWR), "max_sge": uint64(b.MaxSGE),
		"max_sge_rd": uint64(b.MaxSGERd), "max_cq": uint64(b.MaxCQ), "max_cqe": uint64(b.MaxCQE),
		"max_mr": uint64(b.MaxMR), "max_pd": uint64(b.MaxPD), "max_pkeys": uint64(b.MaxPkeys),
		"max_srq_wr": uint64(b.MaxSRQWR), "max_srq_sge": uint64(b.MaxSRQSGE),
		"device_cap_flags": uint64(b.DeviceCapFlags), "timestamp_mask": r.TimestampMask,
		"hca_core_clock": r.HCACoreClock, "max_tso": uint64(nic.Caps().MaxLSO),
		"max_rwq_indirection_tables":     uint64(r.RSSCaps.MaxRWQIndirectionTables),
		"max_rwq_indirection_table_size": uint64(r.RSSCaps.MaxRWQIndirectionTableSize),
		"rx_hash_fields_mask":            uint64(supportedHash) | uint64(uverbs.HashInner),
		"max_wq_type_rq":                 uint64(r.MaxWQTypeRQ),
		"max_cq_count":                   uint64(r.CQModerationCaps.MaxCount),
		"max_cq_period":                  uint64(r.CQModerationCaps.MaxPeriod),
	}
}
