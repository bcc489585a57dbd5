package uplink

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/internal/hostnet"
)

// A bond of both ports of an mlx5 card has one RDMA device in RoCE LAG: the firmware leads what
// comes to either port through its rules, and spreads what its send queues have over the ports, as
// the bond's mode says (mlx5_create_lag_demux_flow_table and mlx5_modify_lag in
// drivers/net/ethernet/mellanox/mlx5/core). The kernel tells one of the members as its netdev, not
// the bond (mlx5_lag_get_roce_netdev), and its name is mlx5_bond_0 unless udev has changed that.
// Without LAG each port has a device of its own: see bond.

// portBelow returns the netdev of the RDMA device that carries the frames of netdev, which has
// below what is there; netdev itself where nothing carries them: opening it says what is missing.
// ofBond says that there is a device for each of several members of a bond, or for some of them.
// An error that is dv.ErrNoRDMA says why a device is not to be used.
func portBelow(netdev string, below hostnet.Below, all []dv.DeviceInfo) (port string, ofBond bool,
	err error) {
	isPort := func(p hostnet.Port) bool {
		return slices.ContainsFunc(all, func(d dv.DeviceInfo) bool { return d.Netdev == p.Name })
	}
	i := slices.IndexFunc(below.Devices, isPort)
	if isPort(hostnet.Port{Name: netdev}) || i < 0 {
		return netdev, false, nil
	}
	ofBond = below.Bond && !isLAG(below.Devices)
	if ofBond && !slices.Contains(bondModes, below.Mode) {
		return "", false, fmt.Errorf("%s is a bond of mode %s with an RDMA device for each port "+
			"(no RoCE LAG), and rings are for %s: %w", netdev, below.Mode,
			strings.Join(bondModes, ", "), dv.ErrNoRDMA)
	}
	for _, p := range below.Devices {
		if (ofBond || p.Name == below.Devices[i].Name) && !bytes.Equal(p.MAC, below.MAC) {
			return "", false, fmt.Errorf("%s has the address %v and %s, below it, %v, which rings "+
				"would have (fail_over_mac of a bond?): %w", netdev, below.MAC, p.Name, p.MAC,
				dv.ErrNoRDMA)
		}
	}
	return below.Devices[i].Name, ofBond, nil
}

// bondModes are those of which a stack can have rings on each port: each frame leaves by one port,
// and all ports have the bond's address.
var bondModes = []string{"active-backup", "balance-xor", "802.3ad"}

// isLAG says whether there is one device for all members of a bond: they are functions of one card,
// and only one of them has a device. That need not be the member which is told as its netdev. A
// member whose device is away looks the same.
func isLAG(members []hostnet.Port) bool {
	devices := 0
	for _, m := range members {
		if m.RDMA {
			devices++
		}
		if m.Card == "" || m.Card != members[0].Card {
			return false
		}
	}
	return devices == 1 && len(members) > 1
}

// BondFacts stand in for what sysfs and rtnetlink say of a bond whose ports a test has made.
type BondFacts struct {
	Below   func() hostnet.Below
	Devices func() []dv.DeviceInfo
	Changed chan struct{} // as of hostnet.Watcher
	// Member names the configuration for the device of a member.
	Member func(cfg dv.Config, name string) dv.Config
}

// below asks what is below the netdev.
func (u *Uplink) below() (hostnet.Below, error) {
	if f := u.cfg.Bond; f != nil {
		return f.Below(), nil
	}
	return u.cfg.Host.Below()
}

// rdmaDevices returns those there are.
func (u *Uplink) rdmaDevices() []dv.DeviceInfo {
	if f := u.cfg.Bond; f != nil {
		return f.Devices()
	}
	all, _ := dv.List() // an error: there are none
	return all
}

// deviceConfig says which device is below the netdev, or that each member of a bond has one. An
// error that is dv.ErrNoRDMA says that there is none, or that it cannot be used so.
func (u *Uplink) deviceConfig() (cfg dv.Config, ofBond bool, err error) {
	cfg = u.cfg.NIC
	cfg.HostMode = true
	below, err := u.below()
	if err != nil {
		return cfg, false, err
	}
	cfg.VLAN = below.VLAN
	if cfg.Model.Kernel != nil {
		return cfg, false, nil
	}
	cfg.Device, ofBond, err = portBelow(u.cfg.Host.Name(), below, u.rdmaDevices())
	return cfg, ofBond, err
}
