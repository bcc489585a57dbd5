package stack

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/hostnet"
)

// A bond of both ports of an mlx5 card has one RDMA device in RoCE LAG: the firmware leads what
// comes to either port through its rules, and spreads what its send queues have over the ports, as
// the bond's mode says (mlx5_create_lag_demux_flow_table and mlx5_modify_lag in
// drivers/net/ethernet/mellanox/mlx5/core). The kernel tells one of the members as its netdev, not
// the bond (mlx5_lag_get_roce_netdev), and its name is mlx5_bond_0 unless udev has changed that.
// Without LAG each port has a device of its own.

// portBelow is the netdev of the RDMA device that carries the frames of netdev, which has below
// what is there; netdev itself where nothing carries them: opening it says what is missing. An
// error that is dv.ErrNoRDMA says why a device is not to be used.
func portBelow(netdev string, below hostnet.Below, all []dv.DeviceInfo) (string, error) {
	isPort := func(name string) bool {
		return slices.ContainsFunc(all, func(d dv.DeviceInfo) bool { return d.Netdev == name })
	}
	if isPort(netdev) {
		return netdev, nil
	}
	var with, without []hostnet.Port
	for _, p := range below.Devices {
		if isPort(p.Name) {
			with = append(with, p)
		} else {
			without = append(without, p)
		}
	}
	switch {
	case len(with) == 0:
		return netdev, nil
	case below.Bond && len(with) > 1:
		return "", fmt.Errorf("%s has a device for each of %s (no RoCE LAG), and a stack has the "+
			"rings of one: %w", netdev, names(with), dv.ErrNoRDMA)
	case below.Bond && !isLAG(below.Devices):
		return "", fmt.Errorf("%s has rings for %s and none for %s, which is no port of the same "+
			"card in RoCE LAG: %w", netdev, names(with), names(without), dv.ErrNoRDMA)
	case !bytes.Equal(with[0].MAC, below.MAC):
		return "", fmt.Errorf("%s has the address %v and %s, below it, %v, which rings would have "+
			"(fail_over_mac of a bond?): %w", netdev, below.MAC, with[0].Name, with[0].MAC,
			dv.ErrNoRDMA)
	}
	return with[0].Name, nil
}

// isLAG says whether there is one device for all members of a bond: they are functions of one card,
// and only one of them has a device. That need not be the member which is told as its netdev.
func isLAG(members []hostnet.Port) bool {
	devices := 0
	for _, m := range members {
		if m.RDMA {
			devices++
		}
		if len(members) > 1 && (m.Card == "" || m.Card != members[0].Card) {
			return false
		}
	}
	return devices == 1
}

func names(ports []hostnet.Port) string {
	var list []string
	for _, p := range ports {
		list = append(list, p.Name)
	}
	return strings.Join(list, ", ")
}
