package uverbs

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestCapsDecoded(t *testing.T) {
	_, c := openFake(t, Options{})
	want := DeviceCaps{
		Firmware: "22.31.1014", NodeGUID: 0x0102030405060708, VendorID: 0x2c9, PartID: 0x101d,
		Ports: 1, CompVectors: 8, OptionalMRAccess: true,
		CQEVersion: 1, CacheLine: 64, MaxSendDesc: 1024, MaxRecvDesc: 512, MaxSendBlocks: 32768,
		MaxRecvWR: 32768, InlineMode: 1, MinInline: 0,
		Bfregs: 16, BFRegSize: 512, UARsPerPage: 1, MaxCQE: 1<<22 - 1, RawPacketRSS: true,
		Steering: true, MaxIndTables: 1 << 20, MaxIndTableSize: 2048,
		Toeplitz: true, HashFields: 0x800000ff, Checksums: true, VLANStrip: true, ScatterFCS: true,
		WriteEndPadding: true, MaxTSO: 1 << 18,
		MPW: true, EnhancedMPW: true, CQECompression: 7, MaxMiniCQEs: 64, Striding: true,
		MinStrideLogBytes: 6, MaxStrideLogBytes: 13,
		MinLogStridesInWQE: 9, MaxLogStridesInWQE: 16, ModerationMaxCount: 65535,
		ModerationMaxPeriod: 4095, TunnelOffloads: 7,
		TimestampMask: 1<<63 - 1, CoreClockKHz: 1000000, ClockPage: true,
		ClockInfo: true, RealTimeStamps: true,
	}
	have := c.Caps()
	for i, f := range have.Facts() {
		if w := reflect.ValueOf(want).Field(i).Interface(); f.Value != w {
			t.Errorf("%s is %v, want %v", f.Name, f.Value, w)
		}
	}
}

// TestCapsSayWhatTheyMean: each field has a description.
func TestCapsSayWhatTheyMean(t *testing.T) {
	facts := DeviceCaps{}.Facts()
	if len(facts) != reflect.TypeFor[DeviceCaps]().NumField() {
		t.Fatalf("%d facts", len(facts))
	}
	seen := map[string]string{}
	for _, f := range facts {
		if len(f.Says) < 15 || seen[f.Says] != "" {
			t.Errorf("%s says %q, as does %q", f.Name, f.Says, seen[f.Says])
		}
		seen[f.Says] = f.Name
	}
}

// TestCapsOfOldDevices: absent parts read as zero, whatever the other parts contain.
func TestCapsOfOldDevices(t *testing.T) {
	d := decodeCaps(contextAnswer{driver: Mlx5AllocUcontextResp{EthMinInline: Mlx5InlineL2}},
		ExQueryDeviceResp{},
		Mlx5QueryDeviceResp{TSOCaps: Mlx5TSOCaps{MaxTSO: 1 << 18, SupportedQPTs: 1 << 4},
			StridingRQCaps: Mlx5StridingRQCaps{MinStrideBytes: 6}})
	if d.UARsPerPage != 1 || d.MinInline != 18 || d.MaxTSO != 0 || d.Striding ||
		d.MinStrideLogBytes != 0 {
		t.Errorf("%+v", d)
	}
}

func TestCapsCheck(t *testing.T) {
	_, c := openFake(t, Options{})
	good := c.Caps()
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		name   string
		change func(d *DeviceCaps)
		says   string
	}{
		{"completion format", func(d *DeviceCaps) { d.CQEVersion = 0 },
			"completion format 1 (the driver offers 0)"},
		{"no raw packets", func(d *DeviceCaps) { d.RawPacketRSS = false }, "raw packets"},
		{"no steering", func(d *DeviceCaps) { d.Steering = false }, "flow steering"},
		{"confidential", func(d *DeviceCaps) { d.BounceBuffers = true },
			"confidential virtual machine"},
		{"several", func(d *DeviceCaps) { d.Steering, d.CQEVersion = false, 0 }, ", flow steering"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := good
			tc.change(&d)
			if err := d.Check(); !errors.Is(err, ErrUnsupported) ||
				!strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v lacks %q", err, tc.says)
			}
		})
	}
}

func TestLogTableSize(t *testing.T) {
	for _, tc := range []struct {
		n   int
		max uint32
		log int
	}{{1, 2048, 3}, {2, 2048, 4}, {3, 2048, 5}, {4, 2048, 5}, {16, 2048, 7}, {256, 2048, 11},
		{1000, 2048, 11}, {4, 16, 4}, {4, 1, 0}, {4, 0, 0}, {4096, 1 << 20, 13}} {
		if have := (DeviceCaps{MaxIndTableSize: tc.max}).LogTableSize(tc.n); have != tc.log {
			t.Errorf("%d queues, table of at most %d: 1<<%d, want 1<<%d",
				tc.n, tc.max, have, tc.log)
		}
	}
}
