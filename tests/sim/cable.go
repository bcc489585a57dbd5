package sim

import (
	"slices"

	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// cable connects a software NIC to a port of the switch.
type cable struct{ port *port }

var _ wire.Wire = cable{}

// Start implements wire.Wire.
func (c cable) Start(recv func([]frame.Frame)) error {
	c.port.connect(func(frames [][]byte) {
		batch := make([]frame.Frame, len(frames))
		for i, f := range frames {
			batch[i].Data = f
		}
		recv(batch)
	})
	return nil
}

// Send implements wire.Wire.
func (c cable) Send(frames []frame.Frame) (int, error) {
	for i := range frames {
		c.port.put(slices.Clone(frames[i].Data))
	}
	return len(frames), nil
}

// Offloads implements wire.Wire.
func (c cable) Offloads() frame.Offload { return 0 }

// Close implements wire.Wire.
func (c cable) Close() error {
	c.port.connect(nil)
	return nil
}
