// Command coredns runs CoreDNS with the plugins that the test configures.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() { coremain.Run() }
