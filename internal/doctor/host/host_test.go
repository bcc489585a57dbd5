package host_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/doctor"
	"github.com/rdma-netstack/rdma-netstack/internal/doctor/host"
)

// fixture is the files of a machine: one line of testdata each, "path = text", "path @mode = text",
// "path -> target" of a symbolic link, or "path/" of a directory.
type fixture map[string]string

// card reads testdata/name.txt.
func card(t *testing.T, name string) fixture {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSuffix(line, "\n"); line != "" && !strings.HasPrefix(line, "#") {
			f.set(line)
		}
	}
	return f
}

// set adds a line, or replaces the one of the same path.
func (f fixture) set(line string) {
	path, _, _ := strings.Cut(line, " ")
	f[path] = strings.TrimPrefix(line, path)
}

// build makes the files below a directory of the test's.
func (f fixture) build(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	// links last: what they lead to may be written by way of them
	for _, links := range []bool{false, true} {
		for path, rest := range f {
			name := filepath.Join(root, path)
			target, isLink := strings.CutPrefix(rest, " -> ")
			if isLink != links {
				continue
			}
			err := os.MkdirAll(filepath.Dir(name), 0o755)
			switch {
			case strings.HasSuffix(path, "/"):
				err = errors.Join(err, os.MkdirAll(name, 0o755))
			case isLink:
				err = errors.Join(err, os.Symlink(target, name))
			default:
				err = errors.Join(err, write(name, rest))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

// write makes a file of " = text" or " @mode = text".
func write(name, rest string) error {
	how, text, _ := strings.Cut(strings.TrimPrefix(rest, " "), "=")
	mode := fs.FileMode(0o666)
	if strings.TrimSpace(how) == "@0600" {
		mode = 0o600
	}
	text = strings.ReplaceAll(strings.TrimPrefix(text, " "), `\n`, "\n")
	return errors.Join(os.WriteFile(name, []byte(text+"\n"), mode), os.Chmod(name, mode))
}

// config is a machine on which netlink has nothing bad to say.
func config(root, device string) host.Config {
	return host.Config{Root: root, Device: device,
		ESwitchMode: func(string) (string, error) { return "legacy", nil },
		VF:          func(string, int) (host.VF, error) { return host.VF{Trusted: true}, nil },
		Pause:       func(string) (host.Pause, error) { return host.Pause{}, nil },
		RxRing:      func(string) (int, int, error) { return 1024, 8192, nil },
		Filter:      func() error { return nil }}
}

// text is all that was found.
func text(t *testing.T, r doctor.Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.Findings(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestSound wants nothing said of cards that have nothing wrong, by either name or by none.
func TestSound(t *testing.T) {
	for _, tt := range []struct{ card, device string }{
		{"connectx6dx", "mlx5_0"}, {"connectx6dx", "enp101s0f0np0"}, {"connectx6dx", ""},
		{"connectx5_vf", "mlx5_2"}, {"connectx4lx_guest", "ens5"}, {"bluefield2", "p0"},
		{"bluefield2", ""}, {"connectx6dx_sf", "mlx5_4"}, {"connectx6dx_sf", "enp101s0f0s88"},
	} {
		t.Run(tt.card+" "+tt.device, func(t *testing.T) {
			r := host.Run(config(card(t, tt.card).build(t), tt.device))
			if n := r.Count(doctor.OK); n != len(r.Results) || n != 33 {
				t.Errorf("%s", text(t, r))
			}
		})
	}
}

// TestOwnMachine wants an answer about this machine, whatever it has.
func TestOwnMachine(t *testing.T) {
	if r := host.Run(host.Config{}); len(r.Results) < 32 {
		t.Errorf("%d checks\n%s", len(r.Results), text(t, r))
	}
}

// walk visits all files below root.
func walk(root string, visit func(name string, st os.FileInfo)) error {
	return filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err == nil {
			visit(name, st)
		}
		return err
	})
}

// TestNames wants the port of each name, also where only the driver knows it, and an alternative
// name of a netdev.
func TestNames(t *testing.T) {
	for _, tt := range []struct {
		name, device string
		lines        []string
		locate       func(string) (host.Port, error)
		saw          string
	}{
		{"alternative name", "uplink-of-the-first-card", []string{ifc + "mtu = 1000"}, nil,
			"the MTU of enp101s0f0np0 is 1000"},
		{"second port by its number", "mlx5_0/2",
			[]string{ib + "ports/2/link_layer = InfiniBand"}, nil,
			"the link layer of port 2 of mlx5_0 is InfiniBand"},
		{"second port by its netdev's place in the table", "ib1",
			[]string{ib + "ports/2/link_layer = InfiniBand",
				ib + "ports/2/gid_attrs/ndevs/0 = ib1"}, nil,
			"the link layer of port 2 of mlx5_0 is InfiniBand"},
		{"second port, as the driver finds it", "ib1",
			[]string{ib + "ports/2/link_layer = InfiniBand"},
			func(string) (host.Port, error) { return host.Port{"mlx5_0", "ib1", 2}, nil },
			"the link layer of port 2 of mlx5_0 is InfiniBand"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := card(t, "connectx6dx")
			for _, line := range tt.lines {
				f.set(line)
			}
			cfg := config(f.build(t), tt.device)
			cfg.Locate = tt.locate
			cfg.NetdevName = func(name string) string {
				if name == "uplink-of-the-first-card" {
					return "enp101s0f0np0"
				}
				return name
			}
			r := host.Run(cfg)
			if said := text(t, r); r.Count(doctor.Failed) != 1 || !strings.Contains(said, tt.saw) {
				t.Errorf("%s\nwant %q", said, tt.saw)
			}
		})
	}
}

// TestLinkType wants the number that mlxconfig has for a port.
func TestLinkType(t *testing.T) {
	for name, tt := range map[string]struct {
		lines []string
		want  string
	}{
		"first function": {nil, "mlxconfig -d 0000:65:00.0 set LINK_TYPE_P1=2"},
		"second function": {[]string{ib + "device -> ../../../0000:65:00.1",
			"sys/devices/pci0000:60/0000:65:00.1/vendor = 0x15b3"},
			"mlxconfig -d 0000:65:00.1 set LINK_TYPE_P2=2"},
		"VF of the second": {[]string{ib + "device -> ../../../0000:65:02.4",
			"sys/devices/pci0000:60/0000:65:02.4/physfn -> ../0000:65:00.1",
			"sys/devices/pci0000:60/0000:65:00.1/vendor = 0x15b3"},
			"mlxconfig -d 0000:65:00.1 set LINK_TYPE_P2=2"},
		"second of two ports": {[]string{ib + "ports/2/link_layer = InfiniBand"},
			"mlxconfig -d 0000:65:00.0 set LINK_TYPE_P2=2"},
	} {
		f := card(t, "connectx6dx")
		for _, line := range append(tt.lines, ib+"ports/1/link_layer = InfiniBand") {
			f.set(line)
		}
		r := host.Run(config(f.build(t), "mlx5_0"))
		if said := text(t, r); !strings.Contains(said, tt.want) {
			t.Errorf("%s: %s\nwant %q", name, said, tt.want)
		}
	}
}
