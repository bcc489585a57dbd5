package web

import (
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"

	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
)

// h2specReport makes this program run h2spec, and names its report file.
const h2specReport = "H2SPEC_REPORT"

// TestMain runs h2spec if h2specReport is set: its connections must come from the client's
// namespace, which takes a process of its own.
func TestMain(m *testing.M) {
	report := os.Getenv(h2specReport)
	if report == "" {
		os.Exit(m.Run())
	}
	_, err := h2spec.Run(&config.Config{Host: world.Server4, Port: 443, Path: "/",
		Timeout: 2 * time.Second, MaxHeaderLen: 4000,
		TLS: true, Insecure: true, JUnitReport: report})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// attempts is the number of runs when the results of the hosts differ: some cases race with the
// server, on any stack.
const attempts = 4

// TestH2spec: net/http on the stack passes and fails the same cases as on the kernel. A case
// differs if no verdict was seen on both. On a bad wire nothing is compared: h2spec reports late
// frames as errors.
func TestH2spec(t *testing.T) {
	world.Module(t, "github.com/summerwind/h2spec")
	kernel, ours := results{}, results{}
	for range attempts {
		kernel.add(verdicts(t, world.NewKernel(t)))
		ours.add(verdicts(t, world.New(t, "")))
		if len(kernel.differing(ours)) == 0 {
			break
		}
	}
	t.Logf("%d cases; on the kernel net/http fails %q", len(kernel), kernel.failed())
	if failed := kernel.failed(); len(kernel) < 100 ||
		len(ours) != len(kernel) || len(failed) > 20 {
		t.Fatalf("%d cases on the stack, %d on the kernel, where %d failed: that is not h2spec",
			len(ours), len(kernel), len(failed))
	}
	for _, name := range kernel.differing(ours) {
		t.Errorf("%s: %v, on the kernel %v", name, ours[name], kernel[name])
	}
}

// results are the verdicts seen for each case.
type results map[string]map[string]bool

func (r results) add(verdicts map[string]string) {
	for name, v := range verdicts {
		if r[name] == nil {
			r[name] = map[string]bool{}
		}
		r[name][v] = true
	}
}

func (r results) differing(other results) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		same := false
		for v := range r[name] {
			same = same || other[name][v]
		}
		if !same {
			names = append(names, name)
		}
	}
	return names
}

func (r results) failed() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name]["failed"] {
			names = append(names, name)
		}
	}
	return names
}

// patient reads the whole request before it answers, as h2spec expects of every server.
func patient(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	time.Sleep(10 * time.Millisecond) // the request stays open for frames still in flight
	fmt.Fprintln(w, "done")
}

// verdicts runs h2spec and returns the verdict of each case.
func verdicts(t *testing.T, w *world.World) map[string]string {
	t.Helper()
	site(t, w, http.HandlerFunc(patient))
	report := filepath.Join(t.TempDir(), "report.xml")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), h2specReport+"="+report)
	if err := w.Client.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var suites struct {
		Suites []struct {
			Package string `xml:"package,attr"`
			Cases   []struct {
				Name    string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Skipped *struct{} `xml:"skipped"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &suites); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, s := range suites.Suites {
		for i, c := range s.Cases {
			verdict := "passed"
			switch {
			case c.Failure != nil || c.Error != nil:
				verdict = "failed"
			case c.Skipped != nil:
				verdict = "skipped"
			}
			all[fmt.Sprintf("%s.%d %s", s.Package, i+1, c.Name)] = verdict
		}
	}
	return all
}
