package saved_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/saved"
)

// buildMachine makes the files of a machine of package host's tests (their testdata), with more
// lines of the same kind.
func buildMachine(t *testing.T, name string, more ...string) (root string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../host/testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	lines := append(strings.Split(string(text), "\n"), more...)
	for _, links := range []bool{false, true} { // links last
		for _, line := range lines {
			at, rest, _ := strings.Cut(line, " ")
			target, isLink := strings.CutPrefix(rest, "-> ")
			if at == "" || at == "#" || isLink != links {
				continue
			}
			file := filepath.Join(root, at)
			err := os.MkdirAll(filepath.Dir(file), 0o755)
			switch {
			case strings.HasSuffix(at, "/"):
				err = errors.Join(err, os.MkdirAll(file, 0o755))
			case isLink:
				err = errors.Join(err, os.Symlink(target, file))
			default:
				how, content, _ := strings.Cut(rest, "=")
				mode := fs.FileMode(0o666)
				if strings.TrimSpace(how) == "@0600" {
					mode = 0o600
				}
				content = strings.ReplaceAll(strings.TrimPrefix(content, " "), `\n`, "\n")
				err = errors.Join(err, os.WriteFile(file, []byte(content+"\n"), mode),
					os.Chmod(file, mode))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// silent stands for a machine without programs.
func silent(argv ...string) ([]byte, error) {
	return nil, fmt.Errorf("no program %s", argv[0])
}

// TestSavedLooksAlike saves each machine of package host's tests, and has the doctor say of the
// directory what it says of the machine.
func TestSavedLooksAlike(t *testing.T) {
	all, err := filepath.Glob("../host/testdata/*.txt")
	if err != nil || len(all) < 5 {
		t.Fatal(all, err)
	}
	for _, file := range all {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			cfg, dir := host.Config{Root: buildMachine(t, name)}, filepath.Join(t.TempDir(), "new")
			left, err := saved.Save(dir, saved.Machine{Host: cfg, Run: silent})
			if err != nil || len(left) < 5 {
				t.Fatal(left, err)
			}
			want := host.Run(cfg)
			got, err := saved.Look(dir, host.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				for i := range want.Results {
					if i < len(got.Results) && !reflect.DeepEqual(got.Results[i],
						want.Results[i]) {
						t.Errorf("%+v\nwant %+v", got.Results[i], want.Results[i])
					}
				}
				t.Fatalf("%s, %d results, want %s, %d", got.Device, len(got.Results), want.Device,
					len(want.Results))
			}
		})
	}
}

// secrets lists what no saved directory may have, as they stand where they are planted.
func secrets() []string {
	return []string{"b8:ce:f6:12:34:56", "b8-ce-f6-12-34-57", "B8CEF6123458", "b8cef6123459",
		"b8ce:f603:0012:3456", "0xb8cef60300123456", "0xb8cef6123456", "192.0.2.77",
		"2001:db8::77", "fe80:0000:0000:0000:bace:f6ff:fe12:3456", "MT2045X12345",
		"63ab36d2-7c1e-ee11-8000-b83fd2123456", "db7.example.net", "DB7",
		strings.Repeat("c0ffee11", 8)}
}

// TestSavedHasNoSecrets plants addresses, serial numbers and names of the machine wherever the
// doctor and the programs read, and searches what was saved for them.
func TestSavedHasNoSecrets(t *testing.T) {
	all := strings.Join(secrets(), `\n`)
	const dev = "sys/devices/pci0000:60/0000:65:00.0/"
	root := buildMachine(t, "connectx6dx",
		"proc/self/status = Name:	db7\\nUid:	0	0	0	0\\n"+all,
		"proc/self/cgroup = 0::/docker/"+strings.Repeat("c0ffee11", 8),
		"sys/fs/cgroup/docker/"+strings.Repeat("c0ffee11", 8)+"/memory.max = 1",
		dev+"infiniband/mlx5_0/node_guid = b8ce:f603:0012:3456",
		dev+"infiniband/mlx5_0/ports/1/gids/0 = fe80:0000:0000:0000:bace:f6ff:fe12:3456",
		dev+"infiniband/mlx5_0/fw_ver = 22.31.2006 "+all,
		dev+"net/enxb8cef6123459/mtu = 1500",
		"sys/class/net/enxb8cef6123459 -> ../../"+dev+"net/enxb8cef6123459",
		"proc/interrupts = "+all)
	printed := map[string]string{
		"ethtool": "NIC statistics:\n     rx_out_of_buffer: 7\n",
		"lspci": "65:00.0 Ethernet controller\n\tCapabilities: [48] Vital Product Data\n" +
			"\t\t\t[PN] Part number: MCX623106AN-CDAT\n\t\t\t[SN] Serial number: MT2045X12345\n" +
			"\t\t\t[V3] Vendor specific: 63ab36d27c1eee118000b83fd2123456\n" +
			"\tCapabilities: [140] Device Serial Number b8-ce-f6-03-00-12-34-57\n" +
			"\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes\n",
		"mlxconfig": "Device #1:\nDevice: 0000:65:00.0\n  SRIOV_EN  True(1)\n",
		"devlink": "pci/0000:65:00.0:\n  driver mlx5_core\n  serial_number 1CH2045ABC\n" +
			"  board.serial_number MT2045X12345\n  reporter fw\n    state healthy error 0\n",
	}
	dir := t.TempDir()
	left, err := saved.Save(dir, saved.Machine{Host: host.Config{Root: root},
		Run: func(argv ...string) ([]byte, error) {
			return []byte(printed[argv[0]] + strings.Join(secrets(), "\n")), nil
		}, Hosts: []string{"db7.example.net"}})
	if err != nil || len(left) > 0 {
		t.Fatal(left, err)
	}
	want, files := append(secrets(), "63ab36d27c1eee118000b83fd2123456",
		"b8-ce-f6-03-00-12-34-57", "1CH2045ABC"), 0
	err = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		text, err := os.ReadFile(name)
		if e.Type()&fs.ModeSymlink != 0 {
			target, _ := os.Readlink(name)
			text, err = []byte(target), nil
		}
		name = strings.TrimPrefix(name, dir)
		for _, secret := range want {
			word := regexp.MustCompile(`(?i)(^|[^0-9a-z])` + regexp.QuoteMeta(secret) +
				`($|[^0-9a-z])`)
			if i := word.FindStringIndex(name + "\n" + string(text)); i != nil ||
				len(secret) > 11 && strings.Contains(name, secret) {
				t.Errorf("%s has %s", name, secret)
			}
		}
		return err
	})
	if err != nil || files < 30 {
		t.Fatalf("%d files, %v", files, err)
	}
	r, err := saved.Look(dir, host.Config{})
	if err != nil || r.Device != "mlx5_0" {
		t.Fatalf("%+v, %v", r, err)
	}
	if !slices.ContainsFunc(r.Results, func(r doctor.Result) bool {
		return r.Check == "ethtool -S" && strings.Contains(r.Saw, "empty for 7 frames")
	}) {
		t.Errorf("the count is lost: %+v", r.Results)
	}
}

// TestLookAtPublished lets the doctor look at what owners of cards have published.
func TestLookAtPublished(t *testing.T) {
	said := map[string][]string{
		"l2fwd-nv-6": {"note lspci -vv: a PCIe packet has at most 256 bytes, the card could do " +
			"512"},
		"device-plugin-601": {"failed mlxconfig q: port 1 is InfiniBand (LINK_TYPE_P1)"},
		"ethq-8": {"ok ethtool -S: 5 counters; checksums of 845270000 frames computed, of 49000 " +
			"not; no compressed completions in Linux's rings"},
		"5t5g-3": {"note mlxconfig q: REAL_TIME_CLOCK_ENABLE is False(0) until the next boot, " +
			"then True(1)", "note mlxconfig q: time stamps are of a clock that runs on, not of " +
			"real time (REAL_TIME_CLOCK_ENABLE)"},
		"kube-ovn-2685": {"ok mlxconfig q: the card: 14 settings, none of them against a server; " +
			"NUM_OF_VFS is 1"},
		"sriov-operator-968": {"note mlxconfig q: time stamps are of a clock that runs on, not " +
			"of real time (REAL_TIME_CLOCK_ENABLE)"},
		"mstflint-830": {"note mlxconfig q: processors of the card hold its e-switch " +
			"(INTERNAL_CPU_MODEL): frames of this host pass as their rules say"},
		"openshift-48": {"ok mlxconfig q: ConnectX4LX: 8 settings, none of them against a server"},
		"xcp-544": {"failed mlxconfig q: ConnectX3 is a card of mlx4, no server can use its " +
			"rings"},
	}
	sets, err := os.ReadDir("testdata/published")
	if err != nil || len(sets) != len(said) {
		t.Fatalf("%d sets, want %d: %v", len(sets), len(said), err)
	}
	for _, set := range sets {
		dir := filepath.Join("testdata/published", set.Name())
		r, err := saved.Look(dir, host.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range r.Results {
			got = append(got, fmt.Sprintf("%s %s: %s", one.State, one.Check, one.Saw))
		}
		if !slices.Equal(got, said[set.Name()]) {
			t.Errorf("%s: %q\nwant %q", set.Name(), got, said[set.Name()])
		}
		address, err := os.ReadFile(filepath.Join(dir, "address.txt"))
		if err != nil || !strings.HasPrefix(string(address), "https://") {
			t.Errorf("%s: no address: %v", set.Name(), err)
		}
	}
}

// TestLookAtOutputs lets the doctor look at outputs that tell of faults, and at others that do not.
func TestLookAtOutputs(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"damaged frames", "ethtool-S.txt", " rx_crc_errors_phy: 3\n",
			"failed 3 frames came damaged (rx_crc_errors_phy)"},
		{"no room in the card", "ethtool-S.txt", " rx_discards_phy: 9\n",
			"note the card had no room for 9 frames"},
		{"no checksums", "ethtool-S.txt", " rx_csum_none: 9\n rx_csum_complete: 10\n",
			"note the card vouched for no checksum of 9 frames"},
		{"other text", "ethtool-S.txt", "no stats available\n",
			"skipped ethtool-S.txt has no line as ethtool -S prints them"},
		{"narrow link", "lspci-vv.txt", "LnkCap: Port #0, Speed 16GT/s, Width x16, ASPM\n" +
			"LnkSta: Speed 8GT/s (downgraded), Width x8 (downgraded)\n" +
			"MaxPayload 512 bytes, MaxReadReq 512 bytes\n",
			"note the PCIe link runs at 8GT/s x8, the card can do 16GT/s x16"},
		{"short reads", "lspci-vv.txt", "MaxPayload 512 bytes, MaxReadReq 128 bytes\n",
			"note the card reads at most 128 bytes at a time"},
		{"fatal error", "lspci-vv.txt", "MaxPayload 512 bytes, MaxReadReq 512 bytes\n" +
			"DevSta: CorrErr- NonFatalErr- FatalErr+ UnsupReq-\n",
			"failed PCIe has had a fatal error"},
		{"sound", "lspci-vv.txt", "MaxPayload 512 bytes, MaxReadReq 512 bytes\n" +
			"DevSta: CorrErr- NonFatalErr- FatalErr- UnsupReq-\n",
			"ok packets of 512 bytes, reads of 512"},
		{"no functions", "mlxconfig-q.txt", " SRIOV_EN   False(0)\n",
			"note the card has no virtual functions (SRIOV_EN)"},
		{"some functions", "mlxconfig-q.txt",
			" SRIOV_EN True(1)\n NUM_OF_VFS 5\n PF_TOTAL_SF 0\n",
			"ok the card: 3 settings, none of them against a server; NUM_OF_VFS is 5; no " +
				"subfunctions (PF_TOTAL_SF)"},
		{"a card as a plain one", "mlxconfig-q.txt", " INTERNAL_CPU_MODEL EMBEDDED_CPU(1)\n" +
			" INTERNAL_CPU_OFFLOAD_ENGINE DISABLED(1)\n",
			"ok the card: 2 settings, none of them against a server"},
		{"both ports", "mlxconfig-q.txt", " LINK_TYPE_P1 ETH(2)\n LINK_TYPE_P2 IB(1)\n",
			"failed port 2 is InfiniBand (LINK_TYPE_P2)"},
		{"sick", "devlink-health.txt", "pci/0000:65:00.0:\n  reporter fw\n" +
			"    state error error 2 recover 1\n",
			"failed reporter fw has had errors (state error error 2 recover 1)"},
		{"healthy", "devlink-health.txt", "  reporter fw\n    state healthy error 0 recover 0\n",
			"ok 1 reporters, none with an error"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := saved.Look(dir, host.Config{})
		if err != nil || len(r.Results) != 1 {
			t.Errorf("%s: %+v, %v", c.name, r.Results, err)
			continue
		}
		if got := fmt.Sprint(r.Results[0].State, " ", r.Results[0].Saw); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestRefusesDirectories: what cannot be looked at or saved to is said in one sentence.
func TestRefusesDirectories(t *testing.T) {
	empty, full := t.TempDir(), t.TempDir()
	file := filepath.Join(full, "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		filepath.Join(empty, "none"): "no such file or directory",
		file:                         "is no directory",
		empty:                        "has neither sys and proc nor any of ethtool-S.txt",
	} {
		_, err := saved.Look(dir, host.Config{})
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", dir, err, want)
		}
	}
	for dir, want := range map[string]string{
		full: "there is something in it already",
		file: "not a directory",
	} {
		_, err := saved.Save(dir, saved.Machine{Host: host.Config{Root: empty}, Run: silent})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", dir, err, want)
		}
	}
}
