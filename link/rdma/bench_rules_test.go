package rdma

import (
	"fmt"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
)

// BenchmarkHostRule removes a rule and adds it again, beside others: what that costs does not
// depend on how many there are. The model of the card, whose part grows with their logarithm, is
// counted in.
func BenchmarkHostRule(b *testing.B) {
	for _, others := range []int{100, 20_000} {
		b.Run(fmt.Sprint("beside ", others), func(b *testing.B) {
			_, _, e := hostWorld(b)
			rule := func(i int) dv.HostRule { return tcpPort(uint16(1 + i)) }
			for i := range others {
				if err := e.AddRule(b.Context(), rule(i)); err != nil {
					b.Fatal(err)
				}
			}
			at := 0
			for b.Loop() {
				at = (at + 7919) % others
				if err := e.RemoveRule(rule(at)); err != nil {
					b.Fatal(err)
				}
				if err := e.AddRule(b.Context(), rule(at)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
