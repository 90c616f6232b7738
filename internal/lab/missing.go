package lab

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// missing says which of these commands this machine lacks; empty when it has them all.
func missing(commands ...string) string {
	var lacks []string
	for _, c := range commands {
		_, err := exec.LookPath(c)
		if err != nil { // daemons are here, where not everybody looks
			_, err = exec.LookPath("/usr/sbin/" + c)
		}
		if err != nil {
			lacks = append(lacks, c)
		}
	}
	if lacks == nil {
		return ""
	}
	return fmt.Sprintf("no %s in PATH (make install-parts)", strings.Join(lacks, ", "))
}

// cannotUnshare says why this process may not make namespaces; empty when it may.
func cannotUnshare() string {
	if why := missing("unshare", "nsenter", "ip"); why != "" {
		return why
	}
	out, err := exec.Command("unshare", "--net", "--uts", "--pid", "--fork", "--mount", "true").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("may not make namespaces: %s (root may; without root: scripts/cluster.sh userns COMMAND)",
			strings.TrimSpace(string(out)))
	}
	return ""
}

func needsRoot(what string) string {
	if os.Geteuid() != 0 {
		return "needs root " + what
	}
	return ""
}
