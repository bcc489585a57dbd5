package host

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// slowest gives the speed of the slowest port that any mlx5 card is sold with, in Mbit/s.
const slowest = 10000

// linkSpeed: what was negotiated (speed, duplex of sysfs-class-net).
func linkSpeed(m *machine) []problem {
	speed, ok := m.readNumber(m.netdevPath("speed"))
	half := m.readText(m.netdevPath("duplex")) == "half"
	if !half && (!ok || speed <= 0 || speed >= slowest) {
		return noProblem()
	}
	return noteFound(fmt.Sprintf("%s runs at %d Mbit/s, %s duplex", m.netdev, speed,
		m.readText(m.netdevPath("duplex"))),
		"compare with what card and switch can do: ethtool "+m.netdev+
			"; a cable or transceiver that is too slow, or a speed set by hand")
}

// mtuAbove: frames of a virtual or a scalable function pass the port of its physical function,
// whose MTU bounds them.
func mtuAbove(m *machine) []problem {
	ours, ok := m.readNumber(m.netdevPath("mtu"))
	dir, uplinks := m.uplinkNetdevs()
	for _, uplink := range uplinks {
		port, known := m.readNumber(dir, uplink, "mtu")
		if ok && known && port < ours {
			return faultFound(fmt.Sprintf("the MTU of %s is %d, that of its port %s is %d: larger "+
				"frames are dropped", m.netdev, ours, uplink, port),
				fmt.Sprintf("ip link set %s mtu %d, or serve --mtu %d", uplink, ours, port))
		}
	}
	return noProblem()
}

// Pause is how a port is stopped, and stops others: IEEE 802.3x and 802.1Qbb.
type Pause struct {
	Received, Sent uint64 // frames of either kind
	PFC            uint8  // the priorities that pause by themselves, a bit each
}

// pauseFrames: a port that is paused sends nothing, and its rings fill.
func pauseFrames(m *machine) []problem {
	if m.cfg.Pause == nil {
		return noProblem()
	}
	p, err := m.cfg.Pause(m.netdev)
	if err != nil || p.Received+p.Sent == 0 && p.PFC == 0 {
		return noProblem()
	}
	which := "global pause"
	if p.PFC != 0 {
		which = fmt.Sprintf("PFC for priorities %s", priorities(p.PFC))
	}
	return noteFound(fmt.Sprintf("%s: %s is on; %d pause frames received, %d sent", m.netdev, which,
		p.Received, p.Sent),
		"received ones stop the slice, too: tx stalls in top. If they grow, find who is slow "+
			"behind the switch; ethtool -A "+m.netdev+" rx off tx off where nobody needs them")
}

func priorities(bits uint8) string {
	var all []string
	for i := range 8 {
		if bits&(1<<i) != 0 {
			all = append(all, fmt.Sprint(i))
		}
	}
	return strings.Join(all, ", ")
}

// leastRing gives the least receive ring of the netdev that takes a burst of 64 KiB from each of
// some senders, in frames.
const leastRing = 512

// ringSizes: the slice's rings are the server's own. Those of the netdev count for Linux, and for
// packet sockets.
func ringSizes(m *machine) []problem {
	if m.cfg.RxRing == nil {
		return noProblem()
	}
	size, most, err := m.cfg.RxRing(m.netdev)
	if err != nil || size == 0 || size >= leastRing || size >= most {
		return noProblem()
	}
	return noteFound(fmt.Sprintf(
		"the receive rings of %s have %d of up to %d slots: Linux, and packet "+
			"sockets while the device is away, lose frames in bursts", m.netdev, size, most),
		fmt.Sprintf("ethtool -G %s rx %d", m.netdev, min(most, 1024)))
}

// interrupts looks where the card's completion interrupts go: /proc/interrupts calls them
// mlx5_comp0@pci:0000:65:00.0 (drivers/net/ethernet/mellanox/mlx5/core/pci_irq.c).
func interrupts(m *machine) []problem {
	var all [][]int
	for line := range strings.Lines(m.readText("proc/interrupts")) {
		number, rest, ok := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if !ok || len(words) == 0 || !strings.HasPrefix(words[len(words)-1], "mlx5_comp") ||
			!strings.HasSuffix(words[len(words)-1], "@pci:"+m.pciAddress()) {
			continue
		}
		dir := path.Join("proc/irq", strings.TrimSpace(number))
		list := m.readText(dir, "effective_affinity_list")
		if list == "" {
			list = m.readText(dir, "smp_affinity_list")
		}
		if list != "" {
			all = append(all, parseCPUs(list))
		}
	}
	const advice = "start irqbalance, or mlnx_affinity / set_irq_affinity.sh; echo a CPU list " +
		"into /proc/irq/N/smp_affinity_list"
	if len(all) > 1 && len(all[0]) == 1 && !slices.ContainsFunc(all, func(c []int) bool {
		return !slices.Equal(c, all[0])
	}) {
		return noteFound(fmt.Sprintf("all %d completion interrupts of the card go to CPU %d",
			len(all),
			all[0][0]), advice)
	}
	near := m.cpusNearCard()
	if len(all) > 0 && len(near) > 0 && !slices.ContainsFunc(all, func(c []int) bool {
		return haveCommon(c, near)
	}) {
		return noteFound("the card's completion interrupts go to CPUs of another NUMA node", advice)
	}
	return noProblem()
}

// hugePages: memory set aside that this program does not ask for (Documentation/admin-guide/mm/
// hugetlbpage.rst).
func hugePages(m *machine) []problem {
	var total, free, kib uint64
	for name, to := range map[string]*uint64{"HugePages_Total:": &total, "HugePages_Free:": &free,
		"Hugepagesize:": &kib} {
		fmt.Sscanf(m.fieldOf(name, "proc/meminfo"), "%d", to)
	}
	if total == 0 || free < total {
		return noProblem() // or somebody uses them
	}
	return noteFound(fmt.Sprintf("%d MiB are set aside as huge pages, and nobody uses them",
		total*kib>>10),
		"this program needs none: sysctl vm.nr_hugepages=0, if they were meant for it")
}
