// Package host looks for what keeps a server from working well on a card, by reading files of
// /proc, /sys and /dev and by asking netlink: nothing is opened, made or changed. Each check is one
// row of the table in checks.go: what it reads is named there with its source.
package host
