"""Access to a broker: certificates, tokens, roles, the audit log, and secrets of the configuration."""
