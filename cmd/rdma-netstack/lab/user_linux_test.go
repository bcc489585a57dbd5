package lab

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// The test binary acts as the program that runs itself again when RDMA_NETSTACK_LAB_TEST is set to
// a role.
func TestMain(m *testing.M) {
	switch role := os.Getenv("RDMA_NETSTACK_LAB_TEST"); role {
	case "":
		os.Exit(m.Run())
	default:
		os.Exit(play(role))
	}
}

func play(role string) int {
	if os.Getenv(insideEnv) != "" {
		return playInside(role)
	}
	code, err := RunAsNamespaceRoot(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	return code
}

func playInside(role string) int {
	n, err := New("inner")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer n.Close()
	fmt.Println("uid", os.Getuid(), "args", os.Args[1:])
	if role == "wait" {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, unix.SIGTERM)
		fmt.Println("waiting")
		fmt.Println("got", <-ended)
	}
	return 7
}

func nobody(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...) // the test binary's path may be inaccessible
	cmd.Env = append(os.Environ(), "RDMA_NETSTACK_LAB_TEST="+role)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534,
			Gid: 65534}}
	}
	return cmd
}

// needUserNS skips where ordinary users may not make namespaces, or may not run this binary.
func needUserNS(t *testing.T) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := nobody("probe")
	cmd.Stderr = &stderr
	err := cmd.Run()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() != 99 {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("%w %s", err, stderr.String())
	}
	need.That(t, "userns", err)
}

func TestRunAsNamespaceRoot(t *testing.T) {
	needUserNS(t)
	out, err := nobody("run", "one", "two words").CombinedOutput()
	if want := "uid 0 args [one two words]\n"; string(out) != want {
		t.Errorf("printed %q, want %q", out, want)
	}
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 7 {
		t.Errorf("ended with %v, want exit status 7", err)
	}
}

func TestSignalsReachTheInner(t *testing.T) {
	needUserNS(t)
	cmd := nobody("wait")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	for line := ""; line != "waiting\n"; {
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var rest bytes.Buffer
	rest.ReadFrom(lines)
	if rest.String() != "got terminated\n" {
		t.Errorf("after SIGTERM the inner program printed %q", rest.String())
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("ended with %v, want exit status 7", err)
	}
}

func TestInnerDiesWithTheOuter(t *testing.T) {
	needUserNS(t)
	cmd := nobody("wait")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var first [1]byte
	if _, err := stdout.Read(first[:]); err != nil { // the inner program runs
		t.Fatal(err)
	}
	cmd.Process.Kill()
	var rest bytes.Buffer
	rest.ReadFrom(stdout) // ends when the inner program, the last with the pipe open, has ended
	cmd.Wait()
	if strings.Contains(rest.String(), "got") {
		t.Errorf("the inner program ended in order, as if told to: %q", rest.String())
	}
}

func TestRefusalNamesTheSetting(t *testing.T) {
	for _, row := range []struct{ name, file, value, want string }{
		{"debian switch", "kernel/unprivileged_userns_clone", "0\n",
			"sysctl kernel.unprivileged_userns_clone=1"},
		{"count of zero", "user/max_user_namespaces", "0\n",
			"sysctl user.max_user_namespaces=10000"},
		{"net count of zero", "user/max_net_namespaces", "0\n",
			"sysctl user.max_net_namespaces=10000"},
		{"apparmor", "kernel/apparmor_restrict_unprivileged_userns", "1\n",
			"sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
		{"all allowed", "user/max_user_namespaces", "96000\n", "in a container"},
	} {
		t.Run(row.name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, row.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(row.value), 0o644); err != nil {
				t.Fatal(err)
			}
			if got := refusal(root); !strings.Contains(got, row.want) {
				t.Errorf("refusal is %q, want %q in it", got, row.want)
			}
		})
	}
}
