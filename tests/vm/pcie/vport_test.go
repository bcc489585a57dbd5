package pcie

import (
	"encoding/binary"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
)

var testOwn, testGroup = [6]byte{2, 0xaa, 0, 0, 0, 3}, [6]byte{0x33, 0x33, 0xff, 0, 0, 3}

// listInput is MODIFY_NIC_VPORT_CONTEXT with a list of addresses, as mlx5_modify_nic_vport_mac_list
// in linux writes it: 512 bytes, then 8 for each.
func listInput(kind byte, count int, macs ...[6]byte) []byte {
	b := input(0x755, 0, 512)
	b[15] = 1 << 2                                         // field_select.addresses_list
	b[256+240] = kind                                      // allowed_list_type
	binary.BigEndian.PutUint16(b[256+242:], uint16(count)) // allowed_list_size
	for _, m := range macs {
		b = append(append(b, 0, 0), m[:]...)
	}
	return b
}

// promiscInput is MODIFY_NIC_VPORT_CONTEXT with the receive mode.
func promiscInput(multicast, all byte) []byte {
	b := input(0x755, 0, 512)
	b[15] = 1 << 4
	b[256+240] = multicast<<6 | all<<5
	return b
}

// loose is a wire whose other end the test holds.
type loose struct{ recv func([]frame.Frame) }

func (w *loose) Start(recv func([]frame.Frame)) error { w.recv = recv; return nil }
func (w *loose) Send(fs []frame.Frame) (int, error)   { return len(fs), nil }
func (w *loose) Offloads() frame.Offload              { return 0 }
func (w *loose) Close() error                         { return nil }

// TestVportLists checks which frames the e-switch passes after the commands of the netdev's driver.
func TestVportLists(t *testing.T) {
	c, _, nic := newClientOf(t, simnic.Config{Seed: 1,
		Function: simnic.Function{Kind: simnic.VF, Trusted: true}}, Config{})
	c.mapRAM()
	cable := &loose{}
	if err := nic.ConnectWire(cable); err != nil {
		t.Fatal(err)
	}
	passes := func(mac [6]byte) bool {
		before := nic.Counters().Drops.SwitchFilter
		cable.recv([]frame.Frame{{Data: append(mac[:], make([]byte, 54)...)}})
		return nic.Counters().Drops.SwitchFilter == before
	}
	many := make([][6]byte, 257)
	for _, tt := range []struct {
		name       string
		in         []byte
		status     simnic.Status
		own, group bool
	}{
		{"at power-on", input(0x104, 0, 16), 0, false, false},
		{"unicast list", listInput(0, 2, [6]byte{2}, testOwn), 0, true, false},
		{"multicast list", listInput(1, 1, testGroup), 0, true, true},
		{"VLAN list", listInput(2, 1, [6]byte{0, 0, 0, 0, 0, 7}), 0, true, true},
		{"list shorter than it says", listInput(1, 2, testGroup), statusBadInput, true, true},
		{"list of 129 unicast addresses", listInput(0, 129, many[:129]...),
			statusBadParam, true, true},
		{"list of 257 groups", listInput(1, 257, many...), statusBadParam, true, true},
		{"list of no kind", listInput(3, 0), statusBadParam, true, true},
		{"empty multicast list", listInput(1, 0), 0, true, false},
		{"all multicast", promiscInput(1, 0), 0, true, true},
		{"empty unicast list", listInput(0, 0), 0, false, true},
		{"promiscuous", promiscInput(0, 1), 0, true, true},
		{"neither", promiscInput(0, 0), 0, false, false},
	} {
		if got := simnic.Status(c.command(tt.in, 16)[0]); got != tt.status {
			t.Errorf("%s: status %v, want %v", tt.name, got, tt.status)
		}
		if own, group := passes(testOwn), passes(testGroup); own != tt.own || group != tt.group {
			t.Errorf("%s: unicast passes %v, group %v; want %v, %v", tt.name,
				own, group, tt.own, tt.group)
		}
	}
}

// TestVirtualFunction checks a VF as its guest sees it: its own device id, the MAC that the
// hypervisor set, and no control of the port's state.
func TestVirtualFunction(t *testing.T) {
	mac := [6]byte{2, 0xcc, 0, 0, 0, 1}
	for want, cfg := range map[uint16]Config{0x101e: {}, 0x1018: {DeviceID: 0x1018}} {
		c, _, nic := newClientOf(t,
			simnic.Config{MAC: mac[:], Function: simnic.Function{Kind: simnic.VF}}, cfg)
		c.mapRAM()
		if got := binary.LittleEndian.Uint16(c.config(pciDevice, 2)); got != want {
			t.Errorf("PCI device id %#x, want %#x", got, want)
		}
		out := c.command(input(0x754, 0, 16), 16+264)
		if got := [6]byte(out[16+246:]); got != mac {
			t.Errorf("permanent address %x, want %x", got, mac)
		}
		down := input(0x805, 0, 32) // ACCESS_REG: write PAOS
		binary.BigEndian.PutUint16(down[10:], regPAOS)
		paosAdmin.set(down[registerData:], paosDown)
		if out := c.command(down, 32); out[0] != 0 || !nic.Link() {
			t.Errorf("a virtual function's write of PAOS: status %d, link %v", out[0], nic.Link())
		}
	}
}
