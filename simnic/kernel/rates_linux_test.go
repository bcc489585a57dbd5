package kernel

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// A rate is refused with the kernel's error numbers; burst and packet size only belong to a rate.
func TestRateRefused(t *testing.T) {
	able := simnic.PacingCap{MinKbps: 10, MaxKbps: 1000, Rates: 2, Burst: true}
	noBurst := able
	noBurst.Burst = false
	for _, tc := range []struct {
		name  string
		caps  simnic.PacingCap
		kbps  uint32
		burst uverbs.Mlx5BurstInfo
		want  unix.Errno
	}{
		{"no pacing", simnic.PacingCap{}, 100, uverbs.Mlx5BurstInfo{}, unix.EOPNOTSUPP},
		{"no pacing, no limit", simnic.PacingCap{}, 0, uverbs.Mlx5BurstInfo{}, 0},
		{"too low", able, 9, uverbs.Mlx5BurstInfo{}, unix.EINVAL},
		{"lowest", able, 10, uverbs.Mlx5BurstInfo{}, 0},
		{"highest", able, 1000, uverbs.Mlx5BurstInfo{}, 0},
		{"too high", able, 1001, uverbs.Mlx5BurstInfo{}, unix.EINVAL},
		{"burst", able, 100, uverbs.Mlx5BurstInfo{MaxBurstSz: 1}, 0},
		{"burst without rate", able, 0, uverbs.Mlx5BurstInfo{MaxBurstSz: 1}, unix.EINVAL},
		{"size without rate", able, 0, uverbs.Mlx5BurstInfo{TypicalPktSz: 1}, unix.EINVAL},
		{"burst of a card without", noBurst, 100, uverbs.Mlx5BurstInfo{MaxBurstSz: 1},
			unix.EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var table rateTable
			r, got := rateOf(tc.kbps, tc.burst, tc.caps)
			if got == 0 {
				got = table.addUser(r, tc.caps)
			}
			if got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// Queues of equal rates share an entry of the table; it is free when the last of them left.
func TestRateTable(t *testing.T) {
	caps := simnic.PacingCap{MinKbps: 1, MaxKbps: 1000, Rates: 2}
	var table rateTable
	add := func(kbps uint32, want unix.Errno) {
		t.Helper()
		if got := table.addUser(rate{kbps: kbps}, caps); got != want {
			t.Errorf("%d kbit/s: %v, want %v", kbps, got, want)
		}
	}
	add(1, 0)
	add(2, 0)
	add(1, 0)
	add(3, unix.ENOSPC)
	table.dropUser(rate{kbps: 1})
	add(3, unix.ENOSPC)
	table.dropUser(rate{kbps: 1})
	add(3, 0)
	add(1, unix.ENOSPC)
	add(0, 0)
	table.dropUser(rate{})
	add(1, unix.ENOSPC)
}

// The limit reaches the send queue, survives a change that is refused, and ends with RTS and with
// the queue pair.
func TestRateOfQueue(t *testing.T) {
	caps := simnic.DefaultCaps()
	caps.Pacing.Rates = 1
	r := newRawNode(t, simnic.Config{Seed: 1, Caps: caps}, Config{})
	r.open()
	o := r.objects()
	move := func(mask uint32, state uint8) {
		t.Helper()
		r.must(write{cmd: uverbs.CmdModifyQP, out: -1, uhwOut: -1,
			core: bytesOf(uverbs.ModifyQPReq{QPHandle: o.qp, AttrMask: mask, QPState: state,
				PortNum: 1})})
	}
	limit := func(kbps uint32) unix.Errno {
		w := write{cmd: uverbs.ExCmdModifyQP, out: 8, uhwOut: -1,
			core: bytesOf(uverbs.ExModifyQPReq{Base: uverbs.ModifyQPReq{QPHandle: o.qp,
				AttrMask: uverbs.QPAttrRateLimit}, RateLimit: kbps})}
		return r.do(&w)
	}
	users := func(want int) {
		t.Helper()
		if got := len(r.linux.rates.users); got != want {
			t.Errorf("%d entries of the table are used, want %d", got, want)
		}
	}
	if errno := limit(1000); errno != unix.EINVAL {
		t.Errorf("a rate in RESET: %v", errno)
	}
	move(0x21, 1)
	move(1, 2)
	move(1, 3)
	if errno := limit(1000); errno != 0 {
		t.Error(errno)
	}
	users(1)
	if errno := limit(2000); errno != unix.ENOSPC { // the new one is added before the old one goes
		t.Errorf("a second rate: %v", errno)
	}
	if errno := limit(0); errno != 0 {
		t.Error(errno)
	}
	users(0)
	if errno := limit(2000); errno != 0 {
		t.Error(errno)
	}
	users(1)
	move(1, 0)
	users(0)
}
