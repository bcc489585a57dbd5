// Package monitoring has Prometheus itself judge what deploy has for it: it scrapes a server on a
// software NIC, loads the alerts, and evaluates every expression of alerts and dashboard. promtool
// has each alert fire on series of testdata/alerts_test.yml, and be silent on those of a sound
// server. A headless Chromium shows the status page of such a server.
package monitoring
