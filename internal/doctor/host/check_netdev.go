package host

import (
	"fmt"
	"regexp"
	"strings"
)

func netdevHere(m *machine) []problem {
	if m.netdev != "" || len(m.listNames(m.bus, "net")) > 0 {
		return noProblem() // or representors, of which there is another line
	}
	return noteFound("the port's netdev is in another network namespace: its MTU and addresses "+
		"cannot be read",
		"give --mtu, --address and --gateway")
}

// Flags of a netdev (linux include/uapi/linux/if.h).
const flagUp = 1

func netdevUp(m *machine) []problem {
	flags, ok := m.readNumber(m.netdevPath("flags"))
	switch carrier := m.readText(m.netdevPath("carrier")); {
	case ok && flags&flagUp == 0:
		return faultFound(m.netdev+" is down, and its port passes no frames",
			"ip link set "+m.netdev+" up")
	case carrier == "0":
		return faultFound(m.netdev+" has no carrier",
			"look at the cable, the transceiver (ethtool -m) and the other end")
	}
	return noProblem()
}

// checkMTU: IPv6 wants 1280 bytes (RFC 8200 section 5); dv takes 576 to 16384.
func checkMTU(m *machine) []problem {
	const leastIPv6, most = 1280, 16 << 10
	n, ok := m.readNumber(m.netdevPath("mtu"))
	switch {
	case !ok:
		return noProblem()
	case n < leastIPv6:
		return faultFound(fmt.Sprintf("the MTU of %s is %d: IPv6 needs %d", m.netdev, n, leastIPv6),
			"ip link set "+m.netdev+" mtu 1500")
	case n > most:
		return faultFound(fmt.Sprintf("the MTU of %s is %d, frames of up to %d are taken", m.netdev,
			n,
			most),
			"ip link set "+m.netdev+" mtu 9000")
	}
	return noProblem()
}

// linkErrors: frames that the port received damaged (sysfs-class-net-statistics).
func linkErrors(m *machine) (found []problem) {
	for _, name := range []string{"rx_crc_errors", "rx_length_errors", "tx_carrier_errors"} {
		if n, _ := m.readNumber(m.netdevPath("statistics", name)); n > 0 {
			found = append(found, problem{"note", fmt.Sprintf("%s of %s is %d", name, m.netdev, n),
				"if it grows: clean or replace cable and transceiver, and compare the MTU " +
					"of both ends"})
		}
	}
	return found
}

// checkBond finds who the netdev belongs to. A netvsc device is the master of a VF that the host
// gave a guest for speed (drivers/net/hyperv).
func checkBond(m *machine) []problem {
	master := m.linkTarget(m.netdevPath("master"))
	switch {
	case master == "":
		return noProblem()
	case m.linkTarget("sys/class/net", master, "device/driver") == "hv_netvsc":
		return faultFound(fmt.Sprintf("%s is the accelerated half of %s: the host's switch "+
			"passes its own MAC only, and broadcasts to %s",
			m.netdev, master, master),
			"serve --mac netdev takes it whole; a MAC of the slice's own cannot work here")
	case m.exists("sys/class/net", master, "bonding"):
		return faultFound(fmt.Sprintf("%s is in bond %s: frames for the slice may come in at "+
			"the other port",
			m.netdev, master), "serve --device "+master+" --address host is on all its ports; "+
			"for a MAC of our own: ip link set "+m.netdev+" nomaster, or use a VF")
	}
	return noteFound(fmt.Sprintf("%s is a port of %s", m.netdev, master),
		"a bridge does not learn the slice's MAC from this machine's side; give the slice "+
			"a VF if its own hosts are to reach it")
}

// representor reports whether a phys_port_name is that of a representor: of a function's port, such
// as pf0vf1, c1pf0 and c1pf0sf3 (linux net/devlink/port.c, __devlink_port_phys_port_name_get).
func representor(physPortName string) bool {
	return regexp.MustCompile(`^(c\d+)?pf\d+((vf|sf)\d+)?$`).MatchString(physPortName)
}

func onlyRepresentor(m *machine) []problem {
	names := m.listNames(m.bus, "net")
	if m.netdev != "" || len(names) == 0 {
		return noProblem()
	}
	return faultFound(fmt.Sprintf("%s has representors only: %s", m.rdma,
		strings.Join(names, ", ")),
		"use the function that is represented, or an uplink in legacy mode")
}

func eswitchMode(m *machine) []problem {
	if m.cfg.ESwitchMode == nil {
		return noProblem()
	}
	pci := m.linkTarget(m.dev, "device")
	if mode, err := m.cfg.ESwitchMode(pci); err != nil || mode != "switchdev" {
		return noProblem()
	}
	return faultFound(
		"the e-switch is in switchdev mode: frames for unknown MACs go to its slow path",
		"devlink dev eswitch set pci/"+pci+" mode legacy, or give the slice a VF or SF of its own")
}

// vfPolicy asks the physical function's netdev how this virtual function is configured.
func vfPolicy(m *machine) []problem {
	pf := m.linkTarget(m.bus, "physfn")
	if pf == "" || m.cfg.VF == nil {
		return noProblem()
	}
	uplinks := m.listNames(m.bus, "physfn/net")
	for n := 0; len(uplinks) > 0 && m.exists(m.bus, "physfn", fmt.Sprintf("virtfn%d", n)); n++ {
		if m.linkTarget(m.bus, "physfn", fmt.Sprintf("virtfn%d", n)) != m.linkTarget(m.dev,
			"device") {
			continue
		}
		vf, err := m.cfg.VF(uplinks[0], n)
		if err != nil || !vf.SpoofCheck {
			return noProblem()
		}
		return noteFound(fmt.Sprintf("VF %d of %s: trust %v, spoof check %v: what a slice "+
			"sends from a MAC of its own is dropped",
			n, uplinks[0], vf.Trusted, vf.SpoofCheck),
			fmt.Sprintf("serve --mac netdev; or for a MAC of the slice's own ip link set "+
				"%s vf %d spoofchk off", uplinks[0], n))
	}
	return noProblem()
}
