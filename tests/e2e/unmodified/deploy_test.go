package unmodified

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// deployed tells where deploy/unmodified has its files.
const deployed = source + "/deploy/unmodified"

// TestDeploy builds Caddy and CoreDNS as deploy/unmodified/README.md says, starts each by the
// ExecStart line of the unit, with its environment and no capabilities besides the unit's, as a
// user without rights, and has clients outside ask it.
func TestDeploy(t *testing.T) {
	need.Long(t, "builds of minutes")
	need.NetNS(t)
	setpriv, dig := need.Tool(t, "setpriv"), need.Tool(t, "dig")
	b := newBuilder(t)
	clients := b.plain(t, "clients", "./clients")
	readme := readDeployed(t, "README.md")
	for _, tt := range []struct {
		name    string
		sockets map[string]int
		check   func(t *testing.T, s *session)
	}{
		{"caddy", map[string]int{"tcp_listener": 2, "udp": 1}, func(t *testing.T, s *session) {
			s.client(t, clients, "deployed caddy", s.mode.host)
		}},
		{"coredns", map[string]int{"tcp_listener": 1, "udp": 1}, func(t *testing.T, s *session) {
			for _, flag := range []string{"+notcp", "+tcp"} {
				for name, want := range map[string]string{"inhosts.example": "192.0.2.55",
					"a.example": "192.0.2.77"} { // forwarded
					got, err := s.tryClient(t, dig, "@"+s.mode.host, flag, "+time=5", "+tries=5",
						"+short", name, "A")
					if err != nil || strings.TrimSpace(got) != want {
						t.Errorf("dig %s %s: %q, %v", flag, name, got, err)
					}
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pkg := firstMatch(t, readme, `(?m)^rdma-netstack build -o `+tt.name+` (\S+)$`)
			args := firstMatch(t, readme, `(?m)^echo '(ARGS=.*)' > /etc/rdma-netstack/`+tt.name+
				`\.args$`)
			binary := b.overlaid(t, program{name: "deployed " + tt.name, build: pkg})
			for _, m := range modes()[:2] {
				t.Run(m.name, func(t *testing.T) {
					s := startDeployed(t, b, setpriv, tt.name, binary, args, m)
					s.await(t, "sockets of the slice", func() bool {
						counts, err := s.sliceSockets()
						for kind, n := range tt.sockets {
							if err != nil || counts[kind] < n {
								return false
							}
						}
						return true
					})
					before := s.kernelTraffic(t)
					tt.check(t, s)
					if after := s.kernelTraffic(t); !maps.Equal(before, after) {
						t.Errorf("by the kernel, before and after:\n%v\n%v", before, after)
					}
					if tt.name == "coredns" { // the Corefile leaves these to the kernel
						url := "http://127.0.0.1:8080/health"
						got, err := get(t, s.host.DialContext, url)
						if err != nil || got != "OK" {
							t.Errorf("%s: %q, %v", url, got, err)
						}
					}
				})
			}
		})
	}
}

func readDeployed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployed, name))
	must(t, err)
	return string(text)
}

func firstMatch(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in\n%s", pattern, text)
	}
	return m[1]
}

// startDeployed starts a program by the unit, whose absolute paths are those of a directory.
func startDeployed(t *testing.T, b *builder, setpriv, name, binary, args string,
	m mode) *session {
	t.Helper()
	const nobody = 65534
	s := &session{dir: t.TempDir(), log: &lockedBuffer{}, mode: m, b: b}
	s.host, s.outside = newNetwork(t)
	answerNames(t, s)
	root := t.TempDir()
	must(t, os.Chmod(filepath.Dir(root), 0o755)) // for nobody
	below := regexp.MustCompile(`(^|[ =])(/(?:etc|srv|var|usr)\b)`)
	moved := func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, below.ReplaceAllString(line, "${1}"+root+"${2}"))
		}
		return strings.ReplaceAll(strings.Join(lines, ""), "%i", name)
	}
	put := func(name, text string) {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	put("srv/file", string(blob(3_000_000)))
	put("etc/hosts", "192.0.2.55 inhosts.example\n")
	put("etc/resolv.conf", "nameserver "+outsideIP+"\n")
	put("etc/caddy/Caddyfile", moved(readDeployed(t, "Caddyfile")))
	put("etc/coredns/Corefile", moved(readDeployed(t, "Corefile")))
	put("etc/rdma-netstack/"+name+".conf", settingsOf(t, name, m))
	text, err := os.ReadFile(binary)
	must(t, err)
	put("usr/local/bin/"+name, string(text))
	must(t, os.Chmod(filepath.Join(root, "usr/local/bin", name), 0o755))
	state := filepath.Join(root, "var/lib", name)
	must(t, os.MkdirAll(state, 0o755))
	for _, dir := range []string{state, s.dir} {
		must(t, os.Chown(dir, nobody, nobody))
	}

	unit := moved(readDeployed(t, "unmodified@.service"))
	env := []string{"RUNTIME_DIRECTORY=" + s.dir, "STATE_DIRECTORY=" + state}
	for _, v := range regexp.MustCompile(`(?m)^Environment=(.*)$`).FindAllStringSubmatch(unit, -1) {
		env = append(env, v[1])
	}
	const ambient = `(?m)^AmbientCapabilities=(.*)$`
	capabilities := strings.Fields(strings.ToLower(firstMatch(t, unit, ambient)))
	if m.host == hostIP { // the README adds it
		more, err := os.ReadFile(filepath.Join(deployed, "..", "systemd", "host.conf"))
		must(t, err)
		capabilities = append(capabilities, strings.Fields(strings.ToLower(firstMatch(t,
			string(more), ambient)))...)
	}
	for i, c := range capabilities {
		capabilities[i] = "+" + strings.TrimPrefix(c, "cap_")
	}
	some := strings.Join(capabilities, ",")
	command := strings.ReplaceAll(firstMatch(t, unit, `(?m)^ExecStart=(.*)$`), "$ARGS",
		moved(strings.TrimPrefix(args, "ARGS=")))
	as := []string{"--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all," + some,
		"--ambient-caps=-all," + some, "--bounding-set=-all," + some, "--no-new-privs"}
	s.startCommand(t, exec.Command(setpriv, slices.Concat(as, strings.Fields(command))...), env)
	return s
}

// settingsOf returns the settings of deploy/unmodified with the addresses of this network.
func settingsOf(t *testing.T, name string, m mode) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(readDeployed(t, name+".conf")) {
		switch key, _, _ := strings.Cut(line, "="); {
		case key == "DEVICE":
			line = "DEVICE=eth0\n"
		case key == "ADDRESS" && m.host == hostIP:
			line = "ADDRESS=host\n"
		case key == "ADDRESS":
			line = "ADDRESS=" + sliceIP + "/24\n"
		case key == "GATEWAY" && m.host == hostIP:
			continue // the interface's
		case key == "GATEWAY":
			line = "GATEWAY=" + outsideIP + "\n"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}
