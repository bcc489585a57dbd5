package dv_test

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// logLine is the longest record that is a line, in bytes.
const logLine = 200

// Every feature is on, or off with a reason that says whose it is; a record of
// level Debug has all of them, and the start-up line stays a line.
func TestFeatures(t *testing.T) {
	poor := simnic.DefaultCaps()
	poor.Compression, poor.EnhancedMPW, poor.MaxLSO, poor.VLANStrip = false, false, 0, false
	inline, sum := simnic.DefaultCaps(), simnic.DefaultCaps()
	inline.MinInline = simnic.InlineL2
	sum.MiniFormats = 1 << simnic.MiniChecksum
	for _, c := range []struct {
		name string
		caps simnic.Caps
		cfg  dv.Config
		want map[string]string // beginning of the reason; "on" for on
	}{
		{"default", simnic.DefaultCaps(), dv.Config{}, map[string]string{
			"multi-packet send": "on", "completion compression": "on",
			"segmentation (TSO)": "on", "segmentation of datagrams (USO)": "on",
			"receive checksum": "on",
			"send checksum":    "on", "shared multicast": "on", "receive timestamps": "on",
			"multi-segment receive": "choice: frames", "receive spreading (RSS)": "choice:",
			"VLAN stripping": "choice:", "delay drop": "choice:",
			"headers in the descriptor": "device:", "BlueFlame": "choice:",
			"receive coalescing by the NIC (LRO)": "kernel:",
			"VLAN insertion by the NIC":           "kernel:"}},
		{"poor device", poor, dv.Config{}, map[string]string{
			"multi-packet send": "device:", "completion compression": "device:",
			"segmentation (TSO)": "device:", "segmentation of datagrams (USO)": "device:"}},
		{"inline device", inline, dv.Config{},
			map[string]string{"multi-packet send": "device: wants headers",
				"headers in the descriptor": "on"}},
		{"other format", sum, dv.Config{},
			map[string]string{"completion compression": "device: not in the format"}},
		{"frugal", simnic.DefaultCaps(), dv.Config{Tuning: dv.Tuning{NoCompression: true,
			NoMultiPacketSend: true}}, map[string]string{
			"multi-packet send": "choice:", "completion compression": "choice:"}},
		{"eager", simnic.DefaultCaps(), dv.Config{NIC: dv.NIC{RxQueues: 2},
			Tuning: dv.Tuning{StripVLAN: true}}, map[string]string{
			"receive spreading (RSS)": "on", "VLAN stripping": "on",
			"completion compression": "on"}},
		{"in a VLAN", simnic.DefaultCaps(), dv.Config{NIC: dv.NIC{VLAN: 5}},
			map[string]string{"VLAN steering": "on", "VLAN stripping": "on"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			c.cfg.Logger = slog.New(slog.NewTextHandler(&log,
				&slog.HandlerOptions{Level: slog.LevelDebug}))
			d := newSim(t, simnic.Config{Caps: c.caps}, kernel.Config{}).open(t, c.cfg)
			up := regexp.MustCompile(`(?m)^.*msg="device is up".*$`).FindString(log.String())
			if up == "" || len(up) > logLine {
				t.Errorf("%d bytes, want 1 to %d: %q", len(up), logLine, up)
			}
			_, features, _ := strings.Cut(log.String(), "level=DEBUG msg=features")
			for _, f := range d.Features() {
				want, listed := c.want[f.Name]
				if f.Why == "" || listed &&
					(f.On != (want == "on") || !f.On && !strings.HasPrefix(f.Why, want)) {
					t.Errorf("%+v, want %s", f, want)
				}
				if !strings.Contains(features, f.Name) {
					t.Errorf("%s is not in the record of features", f.Name)
				}
				delete(c.want, f.Name)
			}
			if len(c.want) > 0 {
				t.Errorf("not told of: %v", c.want)
			}
		})
	}
}

// Probe tells the same without making a queue, and leaves nothing behind.
func TestProbe(t *testing.T) {
	s := newSim(t, simnic.Config{}, kernel.Config{})
	before := resources(t)
	got, err := dv.Probe(s.config(dv.Config{NIC: dv.NIC{RxQueues: 2}}))
	if err != nil {
		t.Fatal(err)
	}
	sameResources(t, before)
	if want := s.open(t, dv.Config{NIC: dv.NIC{RxQueues: 2}}).Features(); !slices.Equal(got, want) {
		t.Errorf("probed %+v\nopened %+v", got, want)
	}
	refused := newSim(t, simnic.Config{}, kernel.Config{InfiniBand: true})
	before = resources(t)
	if _, err := dv.Probe(refused.config(dv.Config{})); !errors.Is(err, dv.ErrInfiniBand) {
		t.Errorf("InfiniBand port: %v", err)
	}
	sameResources(t, before)
}
