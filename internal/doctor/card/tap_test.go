package card_test

import (
	"slices"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor/card"
)

// TestCompletedEntry has completions lie in the ring as a NIC leaves them while it writes: of an
// entry of 64 bytes the owner bit is in the last one, and comes last.
func TestCompletedEntry(t *testing.T) {
	const invalid, first, second = 0xf1, 0x00, 0x01 // the last byte, by pass of the ring
	for _, tt := range []struct {
		name       string
		was, is    byte // the last byte of entry 1
		counterNew bool
		want       int
	}{
		{"nothing", invalid, invalid, false, -1},
		{"half written", invalid, invalid, true, -1},
		{"whole", invalid, first, true, 1},
		{"half written in the second pass", first, first, true, -1},
		{"whole in the second pass", first, second, true, 1},
	} {
		for _, size := range []int{64, 128} {
			t.Run(tt.name, func(t *testing.T) {
				before := make([]byte, 4*size)
				before[2*size-1] = tt.was
				after := slices.Clone(before)
				if after[2*size-1] = tt.is; tt.counterNew {
					after[2*size-0x10] = 14
				}
				if got := card.CompletedEntry(4, size, before, after); got != tt.want {
					t.Errorf("%d, want %d", got, tt.want)
				}
			})
		}
	}
}
