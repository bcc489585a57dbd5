package dv

import (
	"errors"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
)

func TestNetworkOfNothing(t *testing.T) {
	facts := PortFacts{Name: "sim"}
	if _, err := NetworkOf(NIC{
		Model: Model{
			Kernel: func() (uverbs.Kernel, error) {
				return nil,
					errors.ErrUnsupported
			},
			Facts: facts,
		},
	}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a port without netdev: %v", err)
	}
	facts.Netdev = "no such netdev"
	if _, err := NetworkOf(NIC{
		Model: Model{
			Kernel: func() (uverbs.Kernel, error) {
				return nil,
					errors.ErrUnsupported
			},
			Facts: facts,
		},
	}); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a netdev that does not exist: %v", err)
	}
	if _, err := NetworkOf(NIC{
		VLAN: 6,
		Model: Model{
			Kernel: func() (uverbs.Kernel, error) {
				return nil,
					errors.ErrUnsupported
			},
			Facts: PortFacts{Netdev: "lo"},
		},
	}); !errors.Is(err, ErrNotFound) {
		t.Errorf("VLAN that does not exist: %v", err)
	}
}
