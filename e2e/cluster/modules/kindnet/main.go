// Command kindnet gives the pods of a kind cluster their network. It stands in for kind's own kindnetd, whose Go
// module is not published, and takes the same environment: HOST_IP, POD_SUBNET, CONTROL_PLANE_ENDPOINT.
//
// Three facts are kept true on the node it runs on: a CNI configuration for the node's pod range exists; every other
// node's pod range has a route; traffic that leaves the pod network is masqueraded. IPv4 only, and NetworkPolicy
// objects are not enforced.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	credentials  = "/var/run/secrets/kubernetes.io/serviceaccount"
	cniDirectory = "/etc/cni/net.d"
	period       = 5 * time.Second
	timeout      = 10 * time.Second
	bodyLimit    = 16 << 20
)

type node struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		PodCIDR string `json:"podCIDR"`
	} `json:"spec"`
	Status struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
	} `json:"status"`
}

// internalIPv4 is the node's first internal IPv4 address, or "" while it has none.
func (n node) internalIPv4() string {
	for _, a := range n.Status.Addresses {
		if ip := net.ParseIP(a.Address); a.Type == "InternalIP" && ip != nil && ip.To4() != nil {
			return a.Address
		}
	}
	return ""
}

type agent struct {
	hostIP   string
	subnet   string
	endpoint string
	client   *http.Client
	written  string
}

func newAgent() (*agent, error) {
	pem, err := os.ReadFile(filepath.Join(credentials, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s/ca.crt", credentials)
	}
	endpoint := os.Getenv("CONTROL_PLANE_ENDPOINT")
	if endpoint == "" {
		endpoint = net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	}
	subnet, _, _ := strings.Cut(os.Getenv("POD_SUBNET"), ",")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	return &agent{
		hostIP:   os.Getenv("HOST_IP"),
		subnet:   subnet,
		endpoint: endpoint,
		client:   &http.Client{Timeout: timeout, Transport: transport},
	}, nil
}

func (a *agent) nodes(ctx context.Context) ([]node, error) {
	token, err := os.ReadFile(filepath.Join(credentials, "token"))
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.endpoint+"/api/v1/nodes", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("listing nodes: %s", response.Status)
	}
	var list struct {
		Items []node `json:"items"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, bodyLimit)).Decode(&list)
	return list.Items, err
}

// masquerade replaces our nft table in one transaction. The chain runs before kube-proxy's (priority 100).
func (a *agent) masquerade(ctx context.Context) error {
	rules := fmt.Sprintf(`table ip kindnet {}
delete table ip kindnet
table ip kindnet {
	chain postrouting {
		type nat hook postrouting priority 90; policy accept;
		ip saddr %[1]s ip daddr != %[1]s fib daddr type != local masquerade
	}
}
`, a.subnet)
	return run(ctx, rules, "nft", "-f", "-")
}

func (a *agent) writeCNI(podCIDR string) error {
	if podCIDR == a.written {
		return nil
	}
	ptp := map[string]any{
		"type": "ptp", "ipMasq": false, "mtu": 1500,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": "/run/cni-ipam-state",
			"routes": []any{map[string]string{"dst": "0.0.0.0/0"}},
			"ranges": []any{[]any{map[string]string{"subnet": podCIDR}}},
		},
	}
	portmap := map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}}
	text, err := json.Marshal(map[string]any{"cniVersion": "0.3.1", "name": "kindnet", "plugins": []any{ptp, portmap}})
	if err != nil {
		return err
	}
	target := filepath.Join(cniDirectory, "10-kindnet.conflist")
	if err := os.WriteFile(target+".tmp", text, 0o644); err != nil {
		return err
	}
	if err := os.Rename(target+".tmp", target); err != nil {
		return err
	}
	a.written = podCIDR
	log.Printf("wrote %s for %s", target, podCIDR)
	return nil
}

func (a *agent) reconcile(ctx context.Context) error {
	nodes, err := a.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		ip := n.internalIPv4()
		switch {
		case ip == "" || n.Spec.PodCIDR == "":
			continue
		case ip == a.hostIP:
			err = a.writeCNI(n.Spec.PodCIDR)
		default:
			err = run(ctx, "", "ip", "route", "replace", n.Spec.PodCIDR, "via", ip)
		}
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Metadata.Name, err)
		}
	}
	return nil
}

func run(ctx context.Context, input, name string, arguments ...string) error {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Stdin = strings.NewReader(input)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, arguments, err, output)
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	a, err := newAgent()
	if err != nil {
		log.Fatal(err)
	}
	if err := a.masquerade(ctx); err != nil {
		log.Fatal(err)
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		if err := a.reconcile(ctx); err != nil {
			log.Print(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
