package uverbs

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/internal/mmio"
)

// TestBadArguments: arguments that the kernel would refuse, or accept by mistake, are refused with
// a reason and not sent.
func TestBadArguments(t *testing.T) {
	f := newFixture(t)
	ring, dbr := f.cqAttr.Buf, f.cqAttr.DBR
	for _, tc := range []struct {
		name string
		run  func() error
		says string
	}{
		{"CQ of 3", func() error {
			_, err := f.c.CreateCQ(CQAttr{Entries: 3, Buf: ring, DBR: dbr})
			return err
		}, "power of two"},
		{"CQ of 0", func() error {
			_, err := f.c.CreateCQ(CQAttr{Buf: ring, DBR: dbr})
			return err
		}, "power of two"},
		{"CQ of -4", func() error {
			_, err := f.c.CreateCQ(CQAttr{Entries: -4, Buf: ring, DBR: dbr})
			return err
		}, "power of two"},
		{"CQE of 32", func() error {
			_, err := f.c.CreateCQ(CQAttr{Entries: 4, CQESize: 32, Buf: ring, DBR: dbr})
			return err
		}, "64 or 128"},
		{"small ring", func() error {
			_, err := f.c.CreateCQ(CQAttr{Entries: 128, Buf: ring.Sub(0, 4096), DBR: dbr})
			return err
		}, "needs 8192 bytes"},
		{"no ring", func() error {
			_, err := f.c.CreateCQ(CQAttr{Entries: 128, DBR: dbr})
			return err
		}, "needs 8192 bytes"},
		{"ring in mid page",
			func() error {
				_, err := f.c.CreateCQ(
					CQAttr{Entries: 4, Buf: ring.Sub(64, 256), DBR: dbr})
				return err
			}, "page aligned"},
		{"no record", func() error {
			_, err := f.c.CreateCQ(CQAttr{Entries: 4, Buf: ring})
			return err
		}, "doorbell record"},
		{"record misaligned",
			func() error {
				_, err := f.c.CreateCQ(
					CQAttr{Entries: 4, Buf: ring, DBR: ring.Sub(4, 8)})
				return err
			}, "doorbell record"},
		{"QP without CQ",
			func() error {
				_, err := f.pd.CreateRawQP(
					QPAttr{Entries: 4, SQBuf: ring, DBR: dbr})
				return err
			}, "completion queue"},
		{"QP user index", func() error {
			_, err := f.pd.CreateRawQP(
				QPAttr{CQ: f.cq, Entries: 4, SQBuf: ring, DBR: dbr, UserIndex: 0xffffff})
			return err
		}, "user index"},
		{"WQ without CQ",
			func() error {
				_, err := f.pd.CreateWQ(
					WQAttr{Entries: 4, Buf: ring, DBR: dbr})
				return err
			}, "completion queue"},
		{"WQ stride", func() error {
			_, err := f.pd.CreateWQ(WQAttr{CQ: f.cq, Entries: 4, LogStride: 3, Buf: ring, DBR: dbr})
			return err
		}, "16 to 65536"},
		{"WQ striding in 16 bytes", func() error {
			_, err := f.pd.CreateWQ(
				WQAttr{CQ: f.cq, Entries: 4, Buf: ring, DBR: dbr, Striding: &Striding{}})
			return err
		}, "at least 32"},
		{"WQ user index", func() error {
			_, err := f.pd.CreateWQ(
				WQAttr{CQ: f.cq, Entries: 4, Buf: ring, DBR: dbr, UserIndex: 1 << 24})
			return err
		}, "24 bits"},
		{"empty table", func() error { _, err := f.c.CreateIndirectionTable(nil, 0); return err },
			"at least one queue"},
		{"huge table", func() error {
			_, err := f.c.CreateIndirectionTable([]*WQ{f.wq}, 14)
			return err
		}, "at most 1<<13"},
		{"negative table",
			func() error { _, err := f.c.CreateIndirectionTable([]*WQ{f.wq}, -1); return err },
			"at most 1<<13"},
		{"RSS without table", func() error { _, err := f.pd.CreateRSSQP(RSSAttr{}); return err },
			"indirection table"},
		{"eleven specs",
			func() error {
				_, err := f.rss.CreateFlow(
					FlowAttr{Specs: make([]FlowSpec, 11)})
				return err
			}, "at most 10"},
		{"value outside mask", func() error {
			_, err := f.rss.CreateFlow(
				FlowAttr{Specs: []FlowSpec{EthMatch{Dst: [6]byte{2}}.Spec()}})
			return err
		}, "outside the mask"},
		{"tag", func() error {
			_, err := f.rss.CreateFlow(FlowAttr{Specs: []FlowSpec{Tag(1 << 24)}})
			return err
		}, "24 bits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			names, err := commandsDuring(f.k, tc.run)
			if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), tc.says) ||
				len(names) != 0 {
				t.Errorf("%v, %v lacks %q", names, err, tc.says)
			}
		})
	}
}

// TestAddressesAreOutsideTheHeap: every pointer in a command points into scratch memory, of the
// context or its own.
func TestAddressesAreOutsideTheHeap(t *testing.T) {
	f := newFixture(t)
	for _, c := range f.k.calls {
		for at := 24; at < len(c.raw); at += 16 {
			id, n, data := u16(c.raw[at:]), u16(c.raw[at+2:]), u64(c.raw[at+8:])
			if c.out[id] == nil && n <= 8 {
				continue
			}
			if base := f.c.scratch.Addr(); data < base || data+uint64(n) > base+scratchLen {
				t.Errorf("%s attribute %#x is at %#x, scratch memory at %#x", c.name, id, data,
					base)
			}
		}
	}
	if !mmio.Mapped(f.c.scratch.Addr(), scratchLen) {
		t.Error("scratch memory is not there")
	}
}
