package kernel

import (
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"golang.org/x/sys/unix"
)

// fourKiB gives the size of pages that the numbers of some tests are for.
const fourKiB = 4096

// Doorbell registers: the number for each queue pair, the offsets of pages.
func TestDoorbellRegisters(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.linux.page = fourKiB
	r.open()
	o := r.objects() // uses register 1
	var got []uint32
	var qps []uint32
	for range 16 {
		w := r.must(r.createQP(o))
		got = append(got, u32(w.gotUH, 0))
		qps = append(qps, u32(w.gotOut, 0))
	}
	// then all share register 0
	want := []uint32{4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29, 0, 0}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("registers %v, want %v", got, want)
			break
		}
	}
	r.must(destroyCommand(uverbs.CmdDestroyQP, qps[3]))
	if w := r.must(r.createQP(o)); u32(w.gotUH, 0) != 9 {
		t.Errorf("register %d is given again as %d", 9, u32(w.gotUH, 0))
	}
	for _, tt := range []struct {
		name   string
		offset int64
		length int
		write  bool
		errno  error
	}{
		{"first page", 0x300000, 4096, true, nil},
		{"last page", 0x307000, 4096, true, nil},
		{"one too far", 0x308000, 4096, true, unix.EINVAL},
		{"page 256 and on", 0x1300000 << 4, 4096, true, unix.EINVAL},
		{"write-combining", 0x200000, 4096, true, nil},
		{"either", 0, 4096, true, nil},
		{"two pages", 0x300000, 8192, true, unix.EINVAL},
		{"inside a page", 0x300001, 4096, true, unix.EINVAL},
		{"contiguous", 0x100000, 4096, true, unix.ENOSYS},
		{"clock", 0x500000, 4096, true, unix.EPERM},
		{"clock, to read", 0x500000, 4096, false, unix.EOPNOTSUPP},
		{"nothing", 0x900000, 4096, true, unix.EINVAL},
		{"negative", -4096, 4096, true, unix.EINVAL},
	} {
		p, err := r.node.Mmap(tt.offset, tt.length, tt.write)
		if err != tt.errno || (p == nil) != (err != nil) {
			t.Errorf("mmap %s: %v, %v, want %v", tt.name, p, err, tt.errno)
		}
	}
	r.linux.cfg.NoWriteCombining = true
	if _, err := r.node.Mmap(0x200000, fourKiB, true); err != unix.EPERM {
		t.Errorf("write-combining on a machine without: %v", err)
	}
}

// A medium class of registers is shared evenly.
func TestSharedDoorbellRegisters(t *testing.T) {
	r := newRawNode(t, simnic.Config{Seed: 1}, Config{})
	r.linux.page = fourKiB
	if errno := r.getContext(contextRequest(4, 1), 72); errno != 0 {
		t.Fatal(errno)
	}
	o := r.objects() // has the only private one, register 3
	var got []uint32
	for range 4 {
		got = append(got, u32(r.must(r.createQP(o)).gotUH, 0))
	}
	if got[0] != 1 || got[1] != 4 || got[2] != 1 || got[3] != 4 {
		t.Errorf("registers %v, want 1 4 1 4", got)
	}
}
