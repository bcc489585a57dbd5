package probe

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rdma-netstack/rdma-netstack/apps/httpd"
)

// Download fetches size bytes of httpd's pattern from base (http://host:port) and checks each of
// them.
func (c *Client) Download(ctx context.Context, base string, size int64) error {
	url := fmt.Sprintf("%s/-/bytes/%d", base, size)
	got := &patternChecker{size: size}
	var err error
	if _, ok := c.programs["curl"]; ok {
		err = c.runProgram(ctx, nil, got, "curl", curlArgs(url)...)
	} else {
		err = c.fetchOnce(ctx, http.MethodGet, url, nil, got)
	}
	return got.verdictOf("download", url, err)
}

// Echo posts size bytes of the pattern to base, which sends them back as they arrive, and checks
// each of them.
func (c *Client) Echo(ctx context.Context, base string, size int64) error {
	url := base + "/-/echo"
	got := &patternChecker{size: size}
	body := io.LimitReader(&patternReader{}, size)
	var err error
	if _, ok := c.programs["curl"]; ok {
		err = c.runProgram(
			ctx,
			body,
			got,
			"curl",
			curlArgs("-H", "Content-Type: application/octet-stream", "-H", "Expect:",
				"--data-binary", "@-", url)...)
	} else {
		err = c.fetchOnce(ctx, http.MethodPost, url, body, got)
	}
	return got.verdictOf("echo", url, err)
}

func curlArgs(args ...string) []string {
	return append(
		[]string{"--disable", "--silent", "--show-error", "--fail", "--globoff", "--noproxy", "*"},
		args...)
}

// DownloadConcurrently opens n connections to base, waits until all of them stand, and then fetches
// size bytes over each, rounds times.
func (c *Client) DownloadConcurrently(
	ctx context.Context,
	base string,
	n, rounds int,
	size int64,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var connected, done sync.WaitGroup
	connected.Add(n)
	results := make(chan error, n)
	for range n {
		done.Go(func() {
			t := c.transport()
			defer t.CloseIdleConnections()
			err := c.fetchChecked(ctx, t, base, 1)
			connected.Done()
			connected.Wait()
			for range rounds {
				if err == nil {
					err = c.fetchChecked(ctx, t, base, size)
				}
			}
			results <- err
		})
	}
	done.Wait()
	close(results)
	var all []error
	for err := range results {
		all = append(all, err)
	}
	return firstOf(all)
}

// firstOf returns one of the errors, with how many there were.
func firstOf(errs []error) error {
	failed := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d failed: %w", len(failed), len(errs), failed[0])
}

func (c *Client) fetchChecked(
	ctx context.Context,
	t *http.Transport,
	base string,
	size int64,
) error {
	url := fmt.Sprintf("%s/-/bytes/%d", base, size)
	got := &patternChecker{size: size}
	return got.verdictOf("download", url, c.fetchURL(ctx, t, http.MethodGet, url, nil, got))
}

// transport makes one with a kernel socket of the namespace and one connection at most.
func (c *Client) transport() *http.Transport {
	return &http.Transport{
		DialContext:        c.net.DialContext,
		MaxConnsPerHost:    1,
		DisableCompression: true,
	}
}

func (c *Client) fetchOnce(
	ctx context.Context,
	method, url string,
	body io.Reader,
	into io.Writer,
) error {
	t := c.transport()
	defer t.CloseIdleConnections()
	return c.fetchURL(ctx, t, method, url, body, into)
}

func (c *Client) fetchURL(
	ctx context.Context,
	t *http.Transport,
	method, url string,
	body io.Reader,
	into io.Writer,
) error {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", resp.Status)
	}
	_, err = io.Copy(into, resp.Body)
	return err
}

// patternReader is an endless reader of the pattern.
type patternReader struct{ off int64 }

func (s *patternReader) Read(p []byte) (int, error) {
	httpd.FillPattern(p, s.off)
	s.off += int64(len(p))
	return len(p), nil
}

// patternChecker compares what it is given with the pattern.
type patternChecker struct {
	size, off int64
	wrong     int64 // offset of the first wrong byte + 1
	want      []byte
}

func (c *patternChecker) Write(p []byte) (int, error) {
	if cap(c.want) < len(p) {
		c.want = make([]byte, len(p))
	}
	want := c.want[:len(p)]
	httpd.FillPattern(want, c.off)
	for i := range p {
		if p[i] != want[i] && c.wrong == 0 {
			c.wrong = c.off + int64(i) + 1
		}
	}
	c.off += int64(len(p))
	return len(p), nil
}

func (c *patternChecker) verdictOf(what, url string, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w after %d of %d bytes", what, url, err, c.off, c.size)
	case c.off != c.size:
		return fmt.Errorf("%s %s: %d bytes came, want %d", what, url, c.off, c.size)
	case c.wrong != 0:
		return fmt.Errorf("%s %s: byte %d is wrong", what, url, c.wrong-1)
	}
	return nil
}

// DownloadRepeatedly fetches size bytes from base over one connection, again and again, until a
// fetch fails or ctx ends, and tells how long each took.
func (c *Client) DownloadRepeatedly(
	ctx context.Context,
	base string,
	size int64,
	answered func(took time.Duration),
) error {
	t := c.transport()
	defer t.CloseIdleConnections()
	for {
		began := time.Now()
		if err := c.fetchChecked(ctx, t, base, size); err != nil {
			return err
		}
		answered(time.Since(began))
	}
}
