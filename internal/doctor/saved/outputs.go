package saved

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
)

// eswitchFile names the file with the mode of the e-switch.
const eswitchFile = "devlink-eswitch.txt"

// output describes what a program prints of a card.
type output struct {
	name, file string
	// argv returns the command, nil where there is nothing to ask about.
	argv func(netdev, pci string) []string
	// look returns what is found in the output, and what it is of; "" if it is none. nil: another
	// check reads it.
	look func(text string) (found []doctor.Result, said string)
}

// outputs returns all there are.
func outputs() []output {
	onPCI := func(argv ...string) func(string, string) []string {
		return func(_, pci string) []string {
			if pci == "" {
				return nil
			}
			last := len(argv) - 1
			return append(append([]string(nil), argv[:last]...),
				strings.ReplaceAll(argv[last], "PCI", pci))
		}
	}
	return []output{
		{"ethtool -S", "ethtool-S.txt", func(netdev, _ string) []string {
			if netdev == "" {
				return nil
			}
			return []string{"ethtool", "-S", netdev}
		}, lookAtStatistics},
		{"lspci -vv", "lspci-vv.txt", onPCI("lspci", "-vv", "-s", "PCI"), lookAtPCI},
		{"mlxconfig q", "mlxconfig-q.txt", func(_, pci string) []string {
			if pci == "" {
				return nil
			}
			return []string{"mlxconfig", "-d", pci, "q"}
		}, lookAtSettings},
		{"devlink health", "devlink-health.txt", onPCI("devlink", "health", "show", "pci/PCI"),
			lookAtHealth},
		{"devlink dev info", "devlink-info.txt", onPCI("devlink", "dev", "info", "pci/PCI"), nil},
		{"devlink eswitch", eswitchFile, onPCI("devlink", "dev", "eswitch", "show", "pci/PCI"),
			nil},
	}
}

func note(saw, do string) doctor.Result {
	return doctor.Result{State: doctor.Note, Saw: saw, Do: do}
}

func failure(saw, do string) doctor.Result {
	return doctor.Result{State: doctor.Failed, Saw: saw, Do: do}
}

// wordAfter returns the word behind another one, "" if there is none.
func wordAfter(text, word string) string {
	f := strings.Fields(text)
	for i := 0; i+1 < len(f); i++ {
		if f[i] == word {
			return f[i+1]
		}
	}
	return ""
}

// lookAtStatistics reads the counters of mlx5e (linux
// Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst).
func lookAtStatistics(text string) (found []doctor.Result, said string) {
	n := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if v, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); err == nil {
			n[strings.TrimSpace(name)] = v
		}
	}
	if len(n) == 0 {
		return nil, ""
	}
	if v := n["rx_out_of_buffer"]; v > 0 {
		found = append(found, note(fmt.Sprintf("Linux's receive rings were empty for %d frames", v),
			"ethtool -G IF rx 8192, or more processors for interrupts; frames of the slice are "+
				"not in this count"))
	}
	for _, name := range []string{"rx_crc_errors_phy", "rx_symbol_err_phy"} {
		if v := n[name]; v > 0 {
			found = append(found, failure(fmt.Sprintf("%d frames came damaged (%s)", v, name),
				"another cable or transceiver: ethtool -m IF"))
		}
	}
	if v := n["rx_discards_phy"]; v > 0 {
		found = append(found, note(fmt.Sprintf("the card had no room for %d frames", v),
			"look at the PCIe link (lspci -vv) and at flow control (ethtool -a IF)"))
	}
	if none := n["rx_csum_none"]; none > 0 && none >= (n["rx_csum_complete"]+
		n["rx_csum_unnecessary"])/100 {
		found = append(found, note(fmt.Sprintf("the card vouched for no checksum of %d frames",
			none), "ethtool -K IF rx on; tunnels and fragments are such frames, too"))
	}
	said = fmt.Sprintf("%d counters", len(n))
	if sum := n["rx_csum_complete"] + n["rx_csum_unnecessary"]; sum > 0 {
		said += fmt.Sprintf("; checksums of %d frames computed, of %d not", sum, n["rx_csum_none"])
	}
	if v, has := n["rx_cqe_compress_blks"]; has && v == 0 {
		said += "; no compressed completions in Linux's rings"
	}
	return found, said
}

// settingLine matches a line of mlxconfig: a name, and one value or those by default, now and after
// the next boot. A star is in front of a name whose values differ.
var settingLine = regexp.MustCompile(
	`^[* ]*\s*([A-Z][A-Z0-9_][A-Za-z0-9_]+)\s+(\S+)(?:\s+(\S+)\s+(\S+))?\s*$`)

// cardLine matches the line in which mlxconfig names the kind of the card, in one word.
var cardLine = regexp.MustCompile(`(?m)^\s*Device type:\s+(\S+)\s*$`)

// lookAtSettings reads settings of the firmware.
func lookAtSettings(text string) (found []doctor.Result, said string) {
	now, count := map[string]string{}, 0
	for line := range strings.Lines(text) {
		m := settingLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		count++
		name, current, next := m[1], m[3], m[4]
		if next == "" {
			current, next = m[2], m[2]
		}
		now[name] = current
		if current != next && !strings.HasPrefix(next, "Array") {
			found = append(found, note(fmt.Sprintf("%s is %s until the next boot, then %s", name,
				current, next), "mlxfwreset -d DEVICE reset, or reboot"))
		}
	}
	if count == 0 {
		return nil, ""
	}
	card := "the card"
	if m := cardLine.FindStringSubmatch(text); m != nil {
		card = m[1]
	}
	return append(found, judgeSettings(card, now)...), fmt.Sprintf(
		"%s: %d settings, none of them against a server%s", card, count, functionsOf(now))
}

// judgeSettings returns what the settings in force mean for a server.
func judgeSettings(card string, now map[string]string) (found []doctor.Result) {
	// mlx5 begins with Connect-IB and ConnectX-4 (linux mlx5/core/main.c, mlx5_core_pci_table)
	if strings.HasPrefix(card, "ConnectX3") || strings.HasPrefix(card, "ConnectX-3") {
		found = append(found, failure(card+" is a card of mlx4, no server can use its rings",
			"serve --backend packet, or another card"))
	}
	for port := 1; port <= 2; port++ {
		name := fmt.Sprintf("LINK_TYPE_P%d", port)
		if strings.HasPrefix(now[name], "IB") {
			found = append(found, failure(fmt.Sprintf("port %d is InfiniBand (%s)", port, name),
				fmt.Sprintf("mlxconfig -d DEVICE set %s=2, and reboot", name)))
		}
	}
	// https://docs.nvidia.com/networking/display/bluefieldbsp454/modes+of+operation: DPU mode
	if strings.HasPrefix(now["INTERNAL_CPU_MODEL"], "EMBEDDED_CPU") &&
		!strings.HasPrefix(now["INTERNAL_CPU_OFFLOAD_ENGINE"], "DISABLED") {
		found = append(found, note("processors of the card hold its e-switch "+
			"(INTERNAL_CPU_MODEL): frames of this host pass as their rules say",
			"let them forward the slice's MAC address, or make the card a plain one: mlxconfig "+
				"-d DEVICE set INTERNAL_CPU_OFFLOAD_ENGINE=1, and a power cycle"))
	}
	if strings.HasPrefix(now["SRIOV_EN"], "False") {
		found = append(found, note("the card has no virtual functions (SRIOV_EN)",
			"if a server is to have one: mlxconfig -d DEVICE set SRIOV_EN=1 NUM_OF_VFS=8, and "+
				"reboot"))
	}
	if strings.HasPrefix(now["REAL_TIME_CLOCK_ENABLE"], "False") {
		found = append(found, note("time stamps are of a clock that runs on, not of real time "+
			"(REAL_TIME_CLOCK_ENABLE)", "a server takes either"))
	}
	return found
}

// functionsOf says how many functions a server can be given, "" if no setting tells.
func functionsOf(now map[string]string) (said string) {
	if n := now["NUM_OF_VFS"]; n != "" && strings.HasPrefix(now["SRIOV_EN"], "True") {
		said += fmt.Sprintf("; NUM_OF_VFS is %s", n)
	}
	if now["PF_TOTAL_SF"] == "0" {
		said += "; no subfunctions (PF_TOTAL_SF)"
	}
	return said
}

var (
	payloadAble = regexp.MustCompile(`DevCap:\s+MaxPayload (\d+) bytes`)
	payloadUsed = regexp.MustCompile(`MaxPayload (\d+) bytes, MaxReadReq (\d+) bytes`)
	linkAble    = regexp.MustCompile(`LnkCap:.*Speed ([0-9.]+GT/s), Width (x\d+)`)
	linkUsed    = regexp.MustCompile(`LnkSta:\s+Speed ([0-9.]+GT/s).*Width (x\d+)`)
)

// lookAtPCI reads the PCIe capability.
func lookAtPCI(text string) (found []doctor.Result, said string) {
	able, used := payloadAble.FindStringSubmatch(text), payloadUsed.FindStringSubmatch(text)
	if used == nil {
		return nil, ""
	}
	if able != nil && able[1] != used[1] {
		found = append(found, note(fmt.Sprintf("a PCIe packet has at most %s bytes, the card "+
			"could do %s", used[1], able[1]), "the platform's limit: firmware set-up, "+
			"pci=pcie_bus_perf on the kernel's command line"))
	}
	if n, _ := strconv.Atoi(used[2]); n < 512 {
		found = append(found, note(fmt.Sprintf("the card reads at most %d bytes at a time", n),
			"setpci, or the set-up of the machine: 512 or more"))
	}
	can, does := linkAble.FindStringSubmatch(text), linkUsed.FindStringSubmatch(text)
	if can != nil && does != nil && (can[1] != does[1] || can[2] != does[2]) {
		found = append(found, note(fmt.Sprintf("the PCIe link runs at %s %s, the card can do %s %s",
			does[1], does[2], can[1], can[2]), "another slot"))
	}
	if strings.Contains(text, "DevSta:") && strings.Contains(text, "FatalErr+ ") &&
		regexp.MustCompile(`DevSta:.* FatalErr\+`).MatchString(text) {
		found = append(found, failure("PCIe has had a fatal error", "look for AER in dmesg"))
	}
	return found, fmt.Sprintf("packets of %s bytes, reads of %s", used[1], used[2])
}

// lookAtHealth reads the reporters of devlink-health(8).
func lookAtHealth(text string) (found []doctor.Result, said string) {
	name, count := "", 0
	for line := range strings.Lines(text) {
		if reporter := wordAfter(line, "reporter"); reporter != "" {
			name = reporter
			count++
		}
		state, failed := wordAfter(line, "state"), wordAfter(line, "error")
		if name != "" && (state == "error" || failed != "" && failed != "0") {
			found = append(found, failure(fmt.Sprintf("reporter %s has had errors (%s)", name,
				strings.TrimSpace(line)), "devlink health diagnose DEVICE reporter "+name))
		}
	}
	if count == 0 {
		return nil, ""
	}
	return found, fmt.Sprintf("%d reporters, none with an error", count)
}
