package card

import (
	"errors"
	"net"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// Netdev makes the netdev of a card in the calling thread's namespace, a TAP, which has a carrier
// while the card is open. port is the interface that is the card's wire: the kernel answers for
// none of its addresses there.
func Netdev(name, port string, mac net.HardwareAddr) error {
	for path, value := range map[string]string{"ipv4/conf/" + port + "/arp_ignore": "8",
		"ipv4/conf/" + port + "/rp_filter":    "1", // what is sent to all comes here, too
		"ipv6/conf/" + port + "/disable_ipv6": "1"} {
		if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0); err != nil {
			return err
		}
	}
	if err := lab.Up(port, lab.Setup{}); err != nil {
		return err
	}
	if err := netlink.LinkAdd(&netlink.Tuntap{Mode: netlink.TUNTAP_MODE_TAP,
		LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac},
		Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR}); err != nil {
		return err
	}
	return lab.Up(name, lab.Setup{MAC: mac})
}

// Open opens the card of a netdev and port that Netdev made in the calling thread's namespace, and
// returns how a stack uses it. The caller closes it, after the stack.
func Open(netdev, port string, mac net.HardwareAddr) (*simnic.NIC, dv.Config, error) {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return nil, dv.Config{}, err
	}
	nic, err := simnic.New(simnic.Config{MAC: mac, Seed: 1, MTU: link.Attrs().MTU})
	if err != nil {
		return nil, dv.Config{}, err
	}
	tap, err := wire.OpenTAP(netdev)
	if err == nil {
		err = nic.ConnectNetdev(tap)
	}
	if err != nil {
		return nil, dv.Config{}, errors.Join(err, nic.Close())
	}
	at, err := wire.OpenPacket(port)
	if err == nil {
		err = nic.ConnectWire(at)
	}
	if err != nil {
		return nil, dv.Config{}, errors.Join(err, nic.Close())
	}
	return nic, dv.Config{NIC: dv.NIC{
		Model: dv.Model{
			Kernel: kernel.Opener(nic),
			Facts:  dv.PortFacts{Name: "sim0", Netdev: netdev, MAC: nic.MAC(), MTU: nic.MTU()},
		},
		Rings: dv.Rings{DelayDrop: true},
	}}, nil
}
