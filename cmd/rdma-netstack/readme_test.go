package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// readmeHead is the code that a reader adds before the code at the beginning of README.
const readmeHead = `package main

import (
	"context"
	"log"
	"net/http"
	"net/netip"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

`

// readmeCard replaces the NIC of README's server.
const readmeCard = `package main

import (
	"log"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

func card() dv.NIC {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	tap, err := wire.OpenTAP("slice0")
	if err != nil {
		log.Fatal(err)
	}
	if err := nic.ConnectWire(tap); err != nil {
		log.Fatal(err)
	}
	return dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic),
		Facts: dv.PortFacts{Name: "mlx5_0", MAC: nic.MAC(), MTU: nic.MTU()}}}
}
`

// readmeCode is the server at the beginning of README.
func readmeCode(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if code == nil {
		t.Fatal("README has no Go code")
	}
	return string(code[1])
}

// buildHere compiles files, by name, as if they were a package of this module.
func buildHere(t *testing.T, files map[string]string) (program string) {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for name, text := range files {
		source := filepath.Join(dir, name)
		replace[filepath.Join(root, "readme", name)] = source
		if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "server")
	cmd := exec.Command(need.Tool(t, "go"), "build", "-overlay", filepath.Join(dir, "overlay.json"),
		"-o", program, "./readme")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as make check and make build compile it
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestReadmeServer compiles the server at the beginning of README, unchanged.
func TestReadmeServer(t *testing.T) {
	need.Long(t, "builds programs, 6 s")
	code := readmeCode(t)
	if lines := strings.Count(code, "\n"); lines > 12 {
		t.Errorf("the server of README has grown to %d lines", lines)
	}
	buildHere(t, map[string]string{"main.go": readmeHead + code})
}

// TestReadmeServerServes runs it on a software NIC, and requests a file.
func TestReadmeServerServes(t *testing.T) {
	need.Long(t, "builds a program, 3 s")
	need.TUN(t)
	const device = `dv.NIC{Device: "mlx5_0"}`
	code := readmeCode(t)
	if !strings.Contains(code, device) {
		t.Fatalf("the server of README does not open %s", device)
	}
	head := strings.Replace(readmeHead, "\t\"github.com/rdma-netstack/rdma-netstack/dv\"\n", "", 1)
	program := buildHere(t, map[string]string{"main.go": head + strings.Replace(code, device,
		"card()", 1), "card.go": readmeCard})

	host, err := lab.New("the reader's machine")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	cmd := exec.Command(program)
	cmd.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(cmd.Dir, "hello.txt"),
		[]byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	got, err := fetchFrom(host, "http://192.0.2.10/hello.txt")
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil || got != "hello" {
		t.Errorf("fetched %q, %v; the server said %q", got, err, said.String())
	}
}

// fetchFrom requests url, from the interface slice0 of host, as soon as the interface exists and a
// server answers.
func fetchFrom(host *lab.Net, url string) (body string, err error) {
	transport := &http.Transport{DialContext: host.DialContext}
	defer transport.CloseIdleConnections()
	web := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	up := false
	// while the server starts
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(
		20 * time.Millisecond) {
		if !up {
			err = host.Do(func() error {
				if _, err := net.InterfaceByName("slice0"); err != nil {
					return err
				}
				return lab.Up("slice0",
					lab.Setup{Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}})
			})
			up = err == nil
			continue
		}
		var resp *http.Response
		if resp, err = web.Get(url); err != nil {
			continue
		}
		var b []byte
		b, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		return string(b), err
	}
	return "", err
}
